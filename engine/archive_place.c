/* SPDX-License-Identifier: MIT
 *
 * Members move out of the stage, one rename each, or one for a whole folder that is
 * not there yet.  Each move is remembered, so that a failure half-way (a read-only
 * or sticky folder, another filesystem, a full disk) takes them back in reverse
 * order.  A file that is replaced changes places with the new one; where the
 * filesystem cannot do that, it is kept in the stage under another name.
 *
 * Folders are opened one name at a time without following links.  After the first
 * move no memory is taken.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_folders.h"
#include "archive_place.h"

enum move_kind { NOT_MOVED, ADDED, EXCHANGED, KEPT };

struct move {
    uint32_t nbytes; /* of the member's name: all of it, or a folder on the way */
    unsigned kept;   /* the number in the name of the file that was replaced */
    enum move_kind kind;
};

/* A folder on the way to a member, open until another one is needed. */
struct place {
    int top_fd, fd; /* fd -1: none */
    const char *path;
    size_t nbytes;
};

struct placing {
    const struct zr_archive *a;
    const char *dir;
    struct place stage, target;
    struct move *moves;
    unsigned kept_count;
};

/* ---------------------------------------------------------------- folders */

/* To the last slash among the first nbytes. */
static size_t folder_nbytes(const char *path, size_t nbytes)
{
    while (nbytes && path[nbytes - 1] != '/')
        nbytes--;
    return nbytes;
}

/* 0 or errno, then *failed_nbytes of the path lead to what could not be opened. */
static int enter(struct place *p, const char *path, size_t nbytes, size_t *failed_nbytes)
{
    if (p->fd >= 0 && p->nbytes == nbytes && !memcmp(p->path, path, nbytes))
        return 0;
    if (p->fd >= 0)
        close(p->fd);
    *p = (struct place){p->top_fd, zri_folder_open_path(p->top_fd, path, nbytes, failed_nbytes),
                        path, nbytes};
    return p->fd < 0 ? errno : 0;
}

static void leave(struct place *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}

static int failed(const struct placing *p, int e, const char *name, size_t nbytes,
                  struct zr_error *err)
{
    return zri_fail_errno(err, e, "%s/%.*s: cannot write", p->dir, (int)nbytes, name);
}

/* ---------------------------------------------------------------- before the first move */

/* What lies in the way: a folder where a file goes, a link or file where a folder is
 * needed. */
static int check_member(struct placing *p, const struct zri_member *m, struct zr_error *err)
{
    struct stat st;
    size_t nbytes = folder_nbytes(m->name, m->name_nbytes), failed_nbytes = 0;
    int e = enter(&p->target, m->name, nbytes, &failed_nbytes);
    if (e == ENOENT)
        return ZR_OK; /* nothing below it either */
    if (e == ENOTDIR || e == ELOOP)
        return zri_fail(err, ZR_E_EXISTS, "%s/%.*s: is there and is no folder", p->dir,
                        (int)failed_nbytes, m->name);
    if (e)
        return failed(p, e, m->name, failed_nbytes, err);
    if (m->name[nbytes] && fstatat(p->target.fd, m->name + nbytes, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(st.st_mode))
        return zri_fail(err, ZR_E_EXISTS, "%s/%s: is there and is a folder", p->dir, m->name);
    return ZR_OK;
}

/* ---------------------------------------------------------------- moves */

static bool lacks_flags(int e)
{
    return e == EINVAL || e == ENOSYS || e == EOPNOTSUPP;
}

/* 0, EEXIST or errno. */
static int add(int from_fd, int to_fd, const char *name)
{
    struct stat st;
    int e = renameat2(from_fd, name, to_fd, name, RENAME_NOREPLACE) ? errno : 0;
    if (!lacks_flags(e))
        return e;
    if (fstatat(to_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return EEXIST;
    return renameat(from_fd, name, to_fd, name) ? errno : 0;
}

static void kept_name(unsigned number, char name[32])
{
    snprintf(name, 32, ".replaced-%u", number);
}

/* The file that is there gets a name in the stage that no member has; by a link where
 * there are links, so that the place is never empty. */
static int keep(struct placing *p, const char *name, struct move *move, bool *is_away)
{
    char other[32];
    struct stat st;
    do {
        move->kept = p->kept_count++;
        kept_name(move->kept, other);
    } while (fstatat(p->stage.fd, other, &st, AT_SYMLINK_NOFOLLOW) == 0);
    *is_away = linkat(p->target.fd, name, p->stage.fd, other, 0) != 0;
    if (!*is_away)
        return 0;
    return renameat(p->target.fd, name, p->stage.fd, other) ? errno : 0;
}

static int put_back(struct placing *p, const char *name, const struct move *move)
{
    char other[32];
    kept_name(move->kept, other);
    return renameat(p->stage.fd, other, p->target.fd, name) ? errno : 0;
}

static int replace(struct placing *p, const char *name, struct move *move)
{
    struct stat st;
    bool is_away;
    if (fstatat(p->target.fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return EISDIR;
    int e = renameat2(p->stage.fd, name, p->target.fd, name, RENAME_EXCHANGE) ? errno : 0;
    if (!e)
        move->kind = EXCHANGED;
    if (!lacks_flags(e))
        return e;
    e = keep(p, name, move, &is_away);
    if (e)
        return e;
    if (renameat(p->stage.fd, name, p->target.fd, name) == 0) {
        move->kind = KEPT;
        return 0;
    }
    e = errno;
    if (is_away && put_back(p, name, move))
        move->kind = KEPT; /* for another try */
    return e;
}

/* The last name among the first nbytes of the path, its folder open on both sides. */
static const char *last_name(const char *path, size_t nbytes, char name[NAME_MAX + 1])
{
    size_t start = folder_nbytes(path, nbytes), n = nbytes - start;
    if (n > NAME_MAX)
        return NULL;
    memcpy(name, path + start, n);
    name[n] = 0;
    return name;
}

static int enter_both(struct placing *p, const char *path, size_t nbytes)
{
    size_t ignored;
    int e = enter(&p->target, path, folder_nbytes(path, nbytes), &ignored);
    return e ? e : enter(&p->stage, path, folder_nbytes(path, nbytes), &ignored);
}

/* All of the member's name, or its first folder that is missing. */
static int move_name(struct placing *p, const char *path, size_t nbytes, struct move *move)
{
    char buf[NAME_MAX + 1];
    const char *name = last_name(path, nbytes, buf);
    int e = name ? enter_both(p, path, nbytes) : ENAMETOOLONG;
    if (e)
        return e;
    move->nbytes = (uint32_t)nbytes;
    e = add(p->stage.fd, p->target.fd, name);
    if (!e)
        move->kind = ADDED;
    return e == EEXIST ? replace(p, name, move) : e;
}

/* The member came with a folder that moved before it. */
static bool is_placed(const struct placing *p, const char *name)
{
    struct stat st;
    return fstatat(p->target.fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int move_member(struct placing *p, const struct zri_member *m, struct move *move,
                       struct zr_error *err)
{
    size_t folder = folder_nbytes(m->name, m->name_nbytes), nbytes = m->name_nbytes, ignored;
    int e = enter(&p->target, m->name, folder, &nbytes);
    if (e == ENOENT) {
        e = move_name(p, m->name, nbytes, move);
    } else if (!e && m->name[folder]) {
        e = enter(&p->stage, m->name, folder, &ignored);
        if (e != ENOENT || !is_placed(p, m->name + folder))
            e = e ? e : move_name(p, m->name, nbytes, move);
        else
            e = 0;
    }
    return e ? failed(p, e, m->name, nbytes, err) : ZR_OK;
}

/* ---------------------------------------------------------------- and back */

static int undo(struct placing *p, const char *path, const struct move *move)
{
    char buf[NAME_MAX + 1];
    const char *name = last_name(path, move->nbytes, buf);
    int e = name ? enter_both(p, path, move->nbytes) : ENAMETOOLONG;
    if (e)
        return e;
    if (move->kind == KEPT)
        return put_back(p, name, move);
    unsigned flags = move->kind == EXCHANGED ? RENAME_EXCHANGE : 0;
    return renameat2(p->target.fd, name, p->stage.fd, name, flags) ? errno : 0;
}

/* What cannot go back is told of, and the rest goes back all the same. */
static bool undo_all(struct placing *p)
{
    bool complete = true;
    for (size_t i = p->a->count; i--;)
        if (p->moves[i].kind && undo(p, p->a->members[i].name, &p->moves[i]))
            complete = false;
    return complete;
}

int zri_members_place(const struct zr_archive *a, int stage_fd, int dir_fd, const char *dir,
                      bool *stranded, struct zr_error *err)
{
    struct placing p = {.a = a,
                        .dir = dir,
                        .stage = {.top_fd = stage_fd, .fd = -1},
                        .target = {.top_fd = dir_fd, .fd = -1},
                        .moves = calloc(a->count + 1, sizeof *p.moves)};
    struct zr_error error;
    *stranded = false;
    int rc = p.moves ? ZR_OK : zri_fail(&error, ZR_E_NOMEM, "%s: out of memory", dir);
    for (size_t i = 0; !rc && i < a->count; i++)
        rc = check_member(&p, &a->members[i], &error);
    for (size_t i = 0; !rc && i < a->count; i++)
        rc = move_member(&p, &a->members[i], &p.moves[i], &error);
    *stranded = rc && p.moves && !undo_all(&p);
    leave(&p.stage);
    leave(&p.target);
    free(p.moves);
    return rc ? zri_fail_as(err, &error) : ZR_OK;
}
