/* SPDX-License-Identifier: MIT
 *
 * The command line of zrecordfs, as options and as -o lists.
 */
#ifndef ZRECORDFS_OPTIONS_H
#define ZRECORDFS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum readdirplus { READDIRPLUS_AUTO, READDIRPLUS_ALWAYS, READDIRPLUS_NEVER };

enum { OPTIONS_KERNEL_MAX = 256 };

struct options {
    const char *source;     /* as given */
    const char *mountpoint; /* as given */
    bool foreground;
    bool debug;
    bool allow_other;
    bool show_control;
    bool checksums;
    bool has_uid, has_gid;
    uid_t uid;
    gid_t gid;
    mode_t umask;
    int readdirplus;       /* enum readdirplus */
    int transport;         /* enum transport_kind */
    unsigned threads;      /* 0: by the CPUs */
    int spin_usec;         /* -1: the default */
    unsigned timeout_sec;  /* unmount after so long without a request; 0 never */
    int prefetch;          /* records ahead of a reader; WARM_AUTO, WARM_OFF */
    bool writable_control; /* control=rw */
    bool writable_leaves;  /* rw: of an archive, where it allows that */
    bool preview;
    const char *classes; /* the stream whose labels make folders, or NULL */
    uint64_t cache_nbytes;
    uint64_t shard_length;           /* records in a folder; 0: all */
    char kernel[OPTIONS_KERNEL_MAX]; /* noexec,noatime...: for mount(2), comma-separated */
};

enum options_result { OPTIONS_RUN, OPTIONS_DONE, OPTIONS_USAGE };

/* OPTIONS_DONE after --help or --version, OPTIONS_USAGE after a message on
 * stderr.  Strings point into argv, which getopt_long reorders. */
enum options_result options_parse(struct options *o, int argc, char **argv);

/* "64M" and such: bytes with an optional K, M, G or T of 1024.  False for
 * anything else. */
bool options_parse_nbytes(const char *text, uint64_t *nbytes);
const char *options_readdirplus_name(int value);

#endif
