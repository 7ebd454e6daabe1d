/* SPDX-License-Identifier: MIT
 *
 * A store that is being built: the options that say how its records are encoded,
 * the writer, and what is told at the end.  Shared by import and recode.
 *
 * Functions that return int give 0 or the exit status, having said why.
 */
#ifndef ZRECORD_TOOLS_BUILDING_H
#define ZRECORD_TOOLS_BUILDING_H

#include "tools.h"

struct encoding {
    int codec, level, tune, tier;
    bool tier_given, no_sync;
    const char *dict_file;
};

enum {
    OPT_CODEC = 256,
    OPT_LEVEL,
    OPT_TUNE,
    OPT_TIER,
    OPT_DICT,
    OPT_NO_SYNC,
    OPT_OWN /* the first one of a command's own */
};
#define ENCODING_OPTIONS                                                                           \
    {"codec", required_argument, NULL, OPT_CODEC}, {"level", required_argument, NULL, OPT_LEVEL},  \
        {"tune", required_argument, NULL, OPT_TUNE}, {"tier", required_argument, NULL, OPT_TIER},  \
        {"dict", required_argument, NULL, OPT_DICT},                                               \
    {                                                                                              \
        "no-sync", no_argument, NULL, OPT_NO_SYNC                                                  \
    }
#define ENCODING_HELP                                                                              \
    "  --level N       zstd level (default 3, with a dictionary 19)\n"                             \
    "  --tune WHAT     default, read (for many reads) or write (build fast)\n"                     \
    "  --tier TIER     zstd_dict: train the dictionary fast, balanced (default) or max\n"          \
    "  --dict FILE     zstd_dict: take this dictionary, see zrecord train-dict\n"

/* Takes one of ENCODING_OPTIONS, its argument in optarg; any other is a usage error. */
int encoding_take(struct encoding *e, int option);
/* Refuses options that do not go together. */
int encoding_check(const struct encoding *e);
/* The dictionary of --dict; released with zr_buffer_free, also after a failure. */
int encoding_read_dict(const struct encoding *e, void **dict, size_t *dict_nbytes);

struct building {
    const char *path;
    struct zr_writer *writer;
    size_t piece_nbytes; /* how much to append at a time */
    struct timespec piece_start;
};
/* Begins a store; geometry, dtype, shape and dictionary are in options already.  From
 * here on signals are caught. */
int building_begin(struct building *b, const char *path, const struct encoding *e,
                   struct zr_writer_options *options);
/* Around the reading and appending of each piece.  The end fails when a signal came. */
void building_piece_begin(struct building *b);
int building_piece_end(struct building *b);
/* Publishes, or, when status says that something failed, removes what was written. */
int building_end(struct building *b, int status);
/* "PATH: 12 dense records of <f4 (3,), zstd, 1.0 KiB stored in 0.5 KiB" */
int building_print(const char *path, uint64_t payload_nbytes);

#endif /* ZRECORD_TOOLS_BUILDING_H */
