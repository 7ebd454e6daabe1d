/* SPDX-License-Identifier: MIT
 *
 * What went wrong, told twice: as log lines (stderr in the foreground, syslog in
 * the background), and as a bounded list of damaged records for .control.
 */
#ifndef ZRECORDFS_REPORT_H
#define ZRECORDFS_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct source;
struct zr_error;

/* Lines to stderr, "zrecordfs: ...".  The state at start. */
void report_to_stderr(void);
/* Lines to syslog from now on. */
void report_to_syslog(void);
/* "error", "warning", "info", "debug": what is less urgent is left out from now on.  False
 * for other words.  "info" at first. */
bool report_set_level(const char *name);
const char *report_level(void);
/* priority: LOG_ERR, LOG_WARNING, LOG_INFO of <syslog.h>. */
void report(int priority, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { REPORT_DAMAGE_MAX = 64 }; /* records kept by name; more are only counted */

struct report_damage_entry {
    const struct source *source; /* NULL in a test without one */
    uint64_t record;
    char name[32]; /* of its file */
    int code;      /* enum zr_code */
    char message[256];
};

struct report_damage;

/* NULL when memory runs out. */
struct report_damage *report_damage_new(void);
/* Takes NULL. */
void report_damage_free(struct report_damage *d);
/* Notes a record that could not be served, and logs it the first time.
 * Thread safe. */
void report_damage_add(struct report_damage *d, const struct source *source, uint64_t record,
                       const char *name, const struct zr_error *err);
/* Copies the entries out (entries holds REPORT_DAMAGE_MAX), in the order found;
 * returns how many, and in *failure_count how many failures there were in all,
 * those of the same record included. */
size_t report_damage_list(struct report_damage *d, struct report_damage_entry *entries,
                          uint64_t *failure_count);

#endif
