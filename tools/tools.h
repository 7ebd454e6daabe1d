/* SPDX-License-Identifier: MIT
 *
 * What the subcommands of `zrecord` share: the command table's row type,
 * diagnostics, strict number parsing, the progress bar, signals, record
 * selections and outputs that appear whole or not at all.
 *
 * Functions that return int give 0 or the exit status of the program, having
 * said why on stderr.
 */
#ifndef ZRECORD_TOOLS_H
#define ZRECORD_TOOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "zrecord.h"

enum { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct command {
    const char *name;
    const char *arguments; /* "SOURCE STORE" */
    const char *summary;   /* one line */
    const char *options;   /* the rest of --help */
    int (*run)(int argc, char **argv);
};

extern const struct command cmd_import, cmd_export, cmd_info, cmd_ls, cmd_cat, cmd_verify,
    cmd_train_dict, cmd_recode, cmd_bench, cmd_mount, cmd_umount, cmd_ctl, cmd_pack, cmd_unpack,
    cmd_archive_info, cmd_refresh_checksums;

/* ---------------------------------------------------------------- common.c */

/* The command that runs: named in every diagnostic. */
extern const struct command *current_command;

/* "zrecord: import: ...\n" on stderr. */
void diag(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, then how the command is used; returns EXIT_USAGE. */
int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* For an option that getopt_long has already complained about. */
int usage_hint(void);
/* Prints the command's help on stdout; returns EXIT_FINE. */
int show_help(void);
/* Complains unless exactly `count` arguments follow the options. */
int expect_arguments(int argc, int count);

/* diag of an engine error; returns EXIT_FAILED. */
int fail(const struct zr_error *err);
/* diag of "path: strerror(errno)"; returns EXIT_FAILED. */
int fail_errno(const char *path);
int fail_nomem(void);

/* Decimal digits only, no sign, no blanks, no overflow. */
bool parse_u64(const char *text, uint64_t *value);
/* The same with an optional '-', inside min..max. */
bool parse_int(const char *text, int min, int max, int *value);

/* Opens a store and passes on its warning; options may be NULL. */
int open_store(struct zr_reader **r, const char *path, const struct zr_reader_options *options);
/* True for a directory with a meta.zr. */
bool is_store(const char *path);
/* "(3, 224, 224)" as Python writes it; buf holds SHAPE_TEXT_MAX. */
#define SHAPE_TEXT_MAX (ZR_MAX_NDIM * 22 + 4)
const char *shape_text(uint32_t ndim, const uint64_t *shape, char *buf);
/* "147.0 KiB"; buf holds SIZE_TEXT_MAX. */
#define SIZE_TEXT_MAX 32
const char *size_text(uint64_t nbytes, char *buf);
/* "00000012.npy", the name of a record in a mount; buf holds NAME_TEXT_MAX. */
#define NAME_TEXT_MAX 32
const char *record_name(uint64_t id, uint64_t length, char *buf);

/* Complains when there is something at `path`. */
int refuse_existing(const char *path);
/* By CLOCK_MONOTONIC. */
double seconds_since(const struct timespec *start);
/* The whole of a file of at most max_nbytes; *data is released with
 * zr_buffer_free, also after a failure. */
int read_file(const char *path, size_t max_nbytes, void **data, size_t *nbytes);
/* All of it or errno. */
bool write_all(int fd, const void *data, size_t nbytes);
/* Up to nbytes at offset; fewer only at the end of the file; -1 with errno. */
int64_t read_at(int fd, void *data, size_t nbytes, uint64_t offset);

/* From here on SIGINT, SIGTERM and SIGHUP only set a flag, so that what was
 * begun can be removed.  The program then dies of that signal. */
void signals_catch(void);
/* The signal that came, else 0. */
int signals_pending(void);
void signals_die_if_pending(void);

/* ---------------------------------------------------------------- hint.c */

/* Says what a path that is not a store is instead, and what takes it. */
void hint_no_store(const char *path);

/* ---------------------------------------------------------------- process.c */

/* Runs a program, found by PATH, to its end, passing signals on: its exit status,
 * 128 + signal, or -1 with errno when it could not be started. */
int run_program(const char *program, char **argv);

/* ---------------------------------------------------------------- progress.c
 * A bar on stderr, only when that is a terminal, redrawn ten times a second. */

struct progress {
    const char *label;
    uint64_t total;
    bool shown;
    struct timespec start, drawn;
};
/* total 0: no bar.  PROGRESS_UNKNOWN: how many bytes were done, without a bar. */
#define PROGRESS_UNKNOWN UINT64_MAX
void progress_begin(struct progress *p, const char *label, uint64_t total, bool quiet);
void progress_update(struct progress *p, uint64_t done);
void progress_end(struct progress *p);
/* Erases a bar that is on screen, so that a message can take its line. */
void progress_erase(void);

/* ---------------------------------------------------------------- select.c
 * Records chosen by the user: "0,5,2", "0:256", "0:1000:10", "7:,3". */

struct span {
    uint64_t first, stop, step;
    bool is_single; /* an id, which has to be there; a range ends where the store does */
};
struct selection {
    struct span *spans;
    size_t span_count;
    uint64_t count;       /* records in all, after selection_resolve */
    size_t next_span;     /* where selection_take goes on */
    uint64_t next_offset; /* steps into that span */
};
/* text NULL selects everything. */
int selection_parse(struct selection *s, const char *text);
/* Fills open ends and checks every id against a store's length. */
int selection_resolve(struct selection *s, const char *store, uint64_t length);
/* The next ids, at most `max`; 0 at the end. */
size_t selection_take(struct selection *s, uint64_t *ids, size_t max);
void selection_release(struct selection *s);

/* ---------------------------------------------------------------- output.c
 * A file or folder made under a hidden name beside its target and renamed. */

struct output {
    const char *target;
    char *temporary;
    int fd; /* of the file or the folder */
    bool folder;
};
/* An existing target is refused. */
int output_begin(struct output *o, const char *target, bool folder);
int output_publish(struct output *o);
/* Removes what was written; nothing after output_publish. */
void output_discard(struct output *o);
/* Removes a folder of plain files that had its name already. */
void output_remove_folder(const char *path);

#endif /* ZRECORD_TOOLS_H */
