/* SPDX-License-Identifier: MIT
 *
 * Sources: the stores and folders behind a mount.  A mount of one store has one;
 * a mirrored tree has one for every folder and store that somebody looked at,
 * found on disk at that moment, so new ones appear by themselves.
 *
 * A source stands for what was there when it was found: a store rebuilt at the
 * same path is another source with another number, and what the kernel knows of
 * the old one is never mixed with the new.  Readers are opened when first held
 * and, beyond a bound, closed again, the longest unused first; the table itself
 * keeps some hundred bytes for each source ever looked at.
 */
#ifndef ZRECORDFS_SOURCE_H
#define ZRECORDFS_SOURCE_H

#include "tree.h"
#include "zrecord.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct archive;
struct classes;
struct sources;

/* SOURCE_STORE is one array of records, and everything that asks for it says so. */
enum source_kind { SOURCE_FOLDER, SOURCE_STORE, SOURCE_ARCHIVE };

struct source {
    /* Constant from the start. */
    enum source_kind kind;
    uint32_t place;      /* in inode numbers (tree.h); 0 is the root */
    uint32_t generation; /* tells it from others that had its place */
    struct source *parent;
    const char *path;     /* absolute, on disk */
    const char *name;     /* last part, as shown; "" for the root */
    const char *relative; /* path below the mountpoint; "" for the root */
    struct timespec mtime;

    /* Of a store, while it is held. */
    struct zr_reader *reader;
    struct zr_info info;
    struct tree names;
    struct tree shards; /* when sharded */
    uint64_t shard_count;

    struct classes *classes; /* classes.c, under its lock */

    /* Of an archive that was ever held: open until the end. */
    struct archive *archive;
};

struct sources_options {
    const char *path;       /* absolute */
    const char *mountpoint; /* absolute; never entered */
    bool checksums;
    uint64_t shard_length; /* 0: not sharded */
    bool writable;         /* archives that allow it */
};

/* Opens the root: a store, or a folder that holds some, which is looked for.
 * 0, or -1 with the reason in err. */
int sources_new(struct sources **out, const struct sources_options *options, struct zr_error *err);
/* Nothing is held any more.  Takes NULL. */
void sources_free(struct sources *s);

struct source *sources_root(struct sources *s); /* not a hold; lives as long as s */
bool sources_is_lone(const struct sources *s);  /* the root is a store or archive */
/* Some archive was there from the start that can be written, and others may come. */
bool sources_are_writable(const struct sources *s);

/* The source of that place, held: its reader is open until source_release.  NULL when
 * there is none any more. */
struct source *sources_hold_place(struct sources *s, uint32_t place);
/* One more hold on a held one, or a first one on a folder or root. */
struct source *source_hold(struct sources *s, struct source *source);
/* Takes NULL. */
void source_release(struct sources *s, struct source *source);

/* The child of a mirrored folder, held.  0; ENOENT; EIO for a broken store, or the errno that
 * is in the way of looking at it; the reason goes to err (may be NULL). */
int sources_child(struct sources *s, struct source *folder, const char *name, struct source **out,
                  struct zr_error *err);

/* Calls with every folder, store and broken store below a mirrored folder as they are on
 * disk now; source is NULL for a broken one (and held for the call otherwise).  What could
 * not be looked at has a reason as well, and the folder where that was as source: the call
 * may be the second one for that folder, or one for the root.  Stops at SOURCES_WALK_MAX.
 * In no particular order, folders before what they hold. */
enum { SOURCES_WALK_MAX = 100000 };
typedef void (*sources_walk_fn)(void *ctx, struct source *source, const char *relative,
                                const char *why);
void sources_walk(struct sources *s, struct source *folder, sources_walk_fn fn, void *ctx);

/* Computes the checksums of those archives anew that were written to and are not at their path
 * any more, until *stopping.  Whether some others were written to, to be looked at again. */
bool sources_refresh_left(struct sources *s, const atomic_bool *stopping);

/* Sums over the stores that are there now. */
void sources_totals(struct sources *s, uint64_t *length, uint64_t *disk_nbytes);

#endif
