/* SPDX-License-Identifier: MIT
 *
 * The mounted filesystem: what all parts share, and its request handlers.
 */
#ifndef ZRECORDFS_OPS_H
#define ZRECORDFS_OPS_H

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#include "cache.h"
#include "control.h"
#include "counters.h"
#include "options.h"
#include "report.h"
#include "tree.h"
#include "zrecord.h"

#include <stdatomic.h>
#include <time.h>

/* One mount.  Constant once requests are served, but for the atomic ones; what
 * changes lies behind the pointers, which look after their own locks. */
struct fs {
    const struct options *options;
    struct zr_reader *reader;
    struct zr_info info;
    const char *mountpoint; /* absolute */
    uid_t uid;
    gid_t gid;
    struct timespec mtime; /* of the container */
    int64_t start_nsec;    /* CLOCK_MONOTONIC */
    struct tree tree;
    struct cache *cache;
    struct control *control;
    struct counters *counters;
    struct report_damage *damage;
    unsigned thread_count;
    int64_t spin_nsec;
    atomic_int transport;                        /* enum transport_kind: what runs */
    atomic_bool kernel_opens, kernel_opens_dirs; /* set by INIT: ENOSYS will do */
};

/* Handlers for fuse_session_new, with a struct fs as user data. */
extern const struct fuse_lowlevel_ops ops_handlers;

/* For cache_new: ctx is the struct fs, key the record. */
int ops_decode(void *ctx, uint64_t key, struct cache_bytes *out, struct zr_error *err);

#endif
