/* SPDX-License-Identifier: MIT
 *
 * Logging and the list of damaged records.  A damaged record may be asked for a
 * million times: it is logged once, and what is kept is bounded.
 */
#include "report.h"

#include "zrecord.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

static atomic_bool to_syslog;

void report_to_stderr(void)
{
    atomic_store(&to_syslog, false);
}

void report_to_syslog(void)
{
    openlog("zrecordfs", LOG_PID, LOG_DAEMON);
    atomic_store(&to_syslog, true);
}

static const struct level {
    const char *name;
    int priority;
} LEVELS[] = {
    {"error", LOG_ERR}, {"warning", LOG_WARNING}, {"info", LOG_INFO}, {"debug", LOG_DEBUG}};
enum { LEVEL_COUNT = sizeof LEVELS / sizeof LEVELS[0] };
static atomic_int least_urgent = LOG_INFO;

bool report_set_level(const char *name)
{
    for (size_t i = 0; i < LEVEL_COUNT; i++) {
        if (strcmp(LEVELS[i].name, name) == 0) {
            atomic_store(&least_urgent, LEVELS[i].priority);
            return true;
        }
    }
    return false;
}

const char *report_level(void)
{
    int priority = atomic_load(&least_urgent);
    for (size_t i = 0; i < LEVEL_COUNT; i++)
        if (LEVELS[i].priority == priority)
            return LEVELS[i].name;
    return "";
}

void report(int priority, const char *format, ...)
{
    if (priority > atomic_load(&least_urgent))
        return;
    char line[2048]; /* one write a line, so that threads do not mix theirs */
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (atomic_load(&to_syslog))
        syslog(priority, "%s", line);
    else
        fprintf(stderr, "zrecordfs: %s\n", line);
}

struct report_damage {
    pthread_mutex_t lock; /* everything below */
    uint64_t failure_count;
    size_t count;
    struct report_damage_entry entries[REPORT_DAMAGE_MAX];
};

struct report_damage *report_damage_new(void)
{
    struct report_damage *d = calloc(1, sizeof *d);
    if (d)
        pthread_mutex_init(&d->lock, NULL);
    return d;
}

void report_damage_free(struct report_damage *d)
{
    if (!d)
        return;
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* True when the record is new to the list and has a place there. */
static bool note(struct report_damage *d, const struct source *source, uint64_t record,
                 const char *name, const struct zr_error *err)
{
    d->failure_count++;
    for (size_t i = 0; i < d->count; i++)
        if (d->entries[i].record == record && d->entries[i].source == source)
            return false;
    if (d->count == REPORT_DAMAGE_MAX)
        return false;
    struct report_damage_entry *entry = &d->entries[d->count++];
    entry->source = source;
    entry->record = record;
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->code = err->code;
    snprintf(entry->message, sizeof entry->message, "%.*s", (int)sizeof entry->message - 1,
             err->message);
    return true;
}

void report_damage_add(struct report_damage *d, const struct source *source, uint64_t record,
                       const char *name, const struct zr_error *err)
{
    pthread_mutex_lock(&d->lock);
    bool is_new = note(d, source, record, name, err);
    bool is_full = is_new && d->count == REPORT_DAMAGE_MAX;
    pthread_mutex_unlock(&d->lock);
    if (is_new)
        report(LOG_ERR, "%s", err->message); /* it names file and record */
    if (is_full)
        report(
            LOG_ERR,
            "%d damaged records; further ones are counted but not named (zrecord verify names all)",
            REPORT_DAMAGE_MAX);
}

size_t report_damage_list(struct report_damage *d, struct report_damage_entry *entries,
                          uint64_t *failure_count)
{
    pthread_mutex_lock(&d->lock);
    size_t count = d->count;
    for (size_t i = 0; i < count; i++)
        entries[i] = d->entries[i];
    *failure_count = d->failure_count;
    pthread_mutex_unlock(&d->lock);
    return count;
}
