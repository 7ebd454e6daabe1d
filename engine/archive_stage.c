/* SPDX-License-Identifier: MIT
 *
 * An unpack that is killed leaves its stage.  Stages are locked while their process
 * lives, so the next unpack into the folder can tell, and removes it.  Whoever looks
 * may lock a stage before its maker does; the maker then takes another one.
 *
 * Two unpacks that move members into one folder would mix, and the undoing of one
 * would take what the other has placed.  So they take turns, by the lock of a file
 * that is there only for as long.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_folders.h"
#include "archive_stage.h"

#define PREFIX ".zrecord-"
#define SUFFIX ".tmp"
#define DIGITS 16
#define TURN ".zrecord-turn.lock"
#define WAIT_USEC 2000

static bool is_stage(const char *name)
{
    size_t n = sizeof PREFIX - 1;
    if (strncmp(name, PREFIX, n))
        return false;
    for (const char *p = name + n; p < name + n + DIGITS; p++)
        if (!isxdigit((unsigned char)*p))
            return false;
    return !strcmp(name + n + DIGITS, SUFFIX);
}

bool zri_stage_is_name(const char *name)
{
    return is_stage(name) || !strcmp(name, TURN);
}

/* ---------------------------------------------------------------- stages */

/* false when somebody else has it, who removes it. */
static bool hold(int fd)
{
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB))
        return errno != EWOULDBLOCK; /* else there are no locks, so nobody removes it */
    return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

static int make_one(int at, char *name, int *fd)
{
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return errno;
    snprintf(name, ZRI_STAGE_NAME_NBYTES, PREFIX "%016" PRIx64 SUFFIX, random);
    if (mkdirat(at, name, 0777))
        return errno;
    *fd = zri_folder_open(at, name);
    if (*fd >= 0 && hold(*fd))
        return 0;
    int e = *fd < 0 ? errno : EAGAIN;
    if (*fd >= 0)
        close(*fd);
    unlinkat(at, name, AT_REMOVEDIR);
    *fd = -1;
    return e;
}

int zri_stage_make(int at, char name[ZRI_STAGE_NAME_NBYTES], int *fd)
{
    int e = EAGAIN;
    for (int tries = 0; tries < 16 && (e == EAGAIN || e == EEXIST); tries++)
        e = make_one(at, name, fd);
    if (e)
        name[0] = 0;
    return e;
}

void zri_stage_keep(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0)
        fchmod(fd, (st.st_mode & 07777) | S_ISVTX);
}

static void remove_if_stale(int at, const char *name)
{
    struct stat st;
    int fd = zri_folder_open(at, name);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && !(st.st_mode & S_ISVTX) &&
        flock(fd, LOCK_EX | LOCK_NB) == 0)
        zri_folder_remove(at, name);
    close(fd);
}

void zri_stage_remove_stale(int at)
{
    zri_folder_each(at, remove_if_stale, is_stage);
}

/* ---------------------------------------------------------------- turns */

static int open_turn(int dir_fd)
{
    return openat(dir_fd, TURN, O_RDONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
}

bool zri_turn_begin(int dir_fd, struct zri_watch *watch, int *fd)
{
    struct stat st;
    while ((*fd = open_turn(dir_fd)) >= 0) {
        int e = flock(*fd, LOCK_EX | LOCK_NB) ? errno : 0;
        if (!e && fstat(*fd, &st) == 0 && st.st_nlink > 0)
            break;
        close(*fd);
        *fd = -1;
        if (e && e != EWOULDBLOCK && e != EINTR)
            break;
        if (zri_watch_look(watch))
            return false;
        if (e)
            usleep(WAIT_USEC);
    }
    return true;
}

void zri_turn_end(int dir_fd, int fd)
{
    if (fd < 0)
        return;
    unlinkat(dir_fd, TURN, 0);
    close(fd);
}
