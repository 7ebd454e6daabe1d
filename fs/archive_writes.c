/* SPDX-License-Identifier: MIT
 *
 * archive_writes.h: by a descriptor of its own, since names come and go.
 */
#include "archive_writes.h"

#include "report.h"
#include "zrecord.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

static struct probe_stamp stamp_of(const struct stat *st)
{
    return (struct probe_stamp){st->st_mtim.tv_sec, st->st_mtim.tv_nsec, st->st_size};
}

static bool is_same(const struct probe_stamp *a, const struct probe_stamp *b)
{
    return a->sec == b->sec && a->nsec == b->nsec && a->nbytes == b->nbytes;
}

void archive_writes_init(struct archive_writes *w)
{
    *w = (struct archive_writes){.fd = -1};
    pthread_rwlock_init(&w->lock, NULL);
    pthread_mutex_init(&w->left_lock, NULL);
}

int archive_writes_open(struct archive_writes *w, const char *path, const struct probe_stamp *stamp)
{
    struct stat st;
    w->fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (w->fd < 0 || fstat(w->fd, &st) != 0)
        return errno;
    w->left = stamp_of(&st);
    return is_same(&w->left, stamp) ? 0 : ESTALE;
}

void archive_writes_release(struct archive_writes *w)
{
    if (w->fd >= 0)
        close(w->fd);
    pthread_mutex_destroy(&w->left_lock);
    pthread_rwlock_destroy(&w->lock);
}

/* The last one to come here comes after all changes. */
static void note_left(struct archive_writes *w)
{
    struct stat st;
    pthread_mutex_lock(&w->left_lock);
    if (fstat(w->fd, &st) == 0)
        w->left = stamp_of(&st);
    pthread_mutex_unlock(&w->left_lock);
}

void archive_writes_begin(struct archive_writes *w)
{
    pthread_rwlock_rdlock(&w->lock);
}

bool archive_writes_end(struct archive_writes *w)
{
    note_left(w);
    atomic_store(&w->any, true);
    bool is_first = !atomic_exchange(&w->stale, true);
    pthread_rwlock_unlock(&w->lock);
    return is_first;
}

void archive_writes_refuse(struct archive_writes *w, const char *path, const char *name,
                           const char *why)
{
    char text[ARCHIVE_WRITES_WHY_MAX];
    snprintf(text, sizeof text, "%.300s: %s", name, why);
    pthread_mutex_lock(&w->left_lock);
    bool is_new = strcmp(text, w->refused) != 0;
    memcpy(w->refused, text, sizeof text);
    pthread_mutex_unlock(&w->left_lock);
    if (is_new)
        report(LOG_WARNING, "%s: a write was refused: %s", path, text);
}

void archive_writes_last_refused(struct archive_writes *w, char why[ARCHIVE_WRITES_WHY_MAX])
{
    pthread_mutex_lock(&w->left_lock);
    memcpy(why, w->refused, sizeof w->refused);
    pthread_mutex_unlock(&w->left_lock);
}

bool archive_writes_are_at(struct archive_writes *w, const char *path)
{
    struct stat own, there;
    if (!atomic_load(&w->any))
        return false;
    pthread_rwlock_wrlock(&w->lock); /* nobody changes bytes without having noted it */
    bool are = stat(path, &there) == 0 && fstat(w->fd, &own) == 0 && there.st_dev == own.st_dev &&
               there.st_ino == own.st_ino;
    if (are) {
        const struct probe_stamp stamp = stamp_of(&there);
        are = is_same(&stamp, &w->left);
    }
    pthread_rwlock_unlock(&w->lock);
    return are;
}

static int keep_on(void *ctx, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    const atomic_bool *stopping = ctx;
    return stopping && atomic_load(stopping);
}

void archive_writes_refresh(struct archive_writes *w, const char *path, const atomic_bool *stopping)
{
    char link[64];
    struct stat st;
    struct zr_error err;
    if (!atomic_exchange(&w->stale, false)) /* before: what is written meanwhile counts */
        return;
    if (fstat(w->fd, &st) == 0 && st.st_nlink == 0)
        return; /* deleted */
    snprintf(link, sizeof link, "/proc/self/fd/%d", w->fd);
    int code = zr_archive_refresh(link, keep_on, (void *)(uintptr_t)stopping, &err);
    note_left(w);
    if (code == ZR_E_CANCELLED)
        atomic_store(&w->stale, true);
    else if (code != ZR_OK)
        report(LOG_ERR, "%s: the checksums stay as they were: %s", path, err.message);
}
