/* SPDX-License-Identifier: MIT
 *
 * The mounted filesystem: what all parts share, and its request handlers.
 */
#ifndef ZRECORDFS_OPS_H
#define ZRECORDFS_OPS_H

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#include "cache.h"
#include "classes.h"
#include "commands.h"
#include "control.h"
#include "counters.h"
#include "folders.h"
#include "janitor.h"
#include "listing.h"
#include "minted.h"
#include "node.h"
#include "options.h"
#include "prefetch.h"
#include "preview.h"
#include "records.h"
#include "report.h"
#include "source.h"
#include "tree.h"
#include "views.h"
#include "warm.h"
#include "zrecord.h"

#include <stdatomic.h>
#include <time.h>

/* One mount.  Constant once requests are served, but for the atomic ones; what
 * changes lies behind the pointers, which look after their own locks. */
struct fs {
    const struct options *options;
    struct sources *sources;
    bool is_lone;           /* the source is one store */
    const char *mountpoint; /* absolute */
    uid_t uid;
    gid_t gid;
    int64_t start_nsec;        /* CLOCK_MONOTONIC */
    uint32_t start_generation; /* of minted numbers: another one after each start */
    struct cache *cache;
    struct minted_table *minted;
    struct janitor *janitor;
    struct commands *commands;
    struct fuse_session *session;
    struct counters *counters;
    struct report_damage *damage;
    struct warm *warm;
    unsigned thread_count;
    int64_t spin_nsec;
    atomic_int transport;                        /* enum transport_kind: what runs */
    atomic_bool kernel_opens, kernel_opens_dirs; /* set by INIT: ENOSYS will do */
    _Atomic uint64_t asked_dir;                  /* in which a name was looked up last */
};

/* Handlers for fuse_session_new, with a struct fs as user data. */
extern const struct fuse_lowlevel_ops ops_handlers;

#endif
