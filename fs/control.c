/* SPDX-License-Identifier: MIT
 *
 * The control file: the table of frozen texts, and the status text.
 */
#include "control.h"

#include "ops.h"
#include "transport.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- frozen texts */

struct text {
    struct text *next; /* same bucket */
    uint64_t ino;
    uint64_t lookup_count; /* what the kernel still holds */
    unsigned pin_count;
    char *bytes;
    size_t nbytes;
};

enum { BUCKETS = 256 }; /* numbers are given in turn, so the low bits spread them */

struct control {
    pthread_mutex_t lock; /* everything below */
    size_t max_count, max_nbytes;
    size_t count, nbytes;
    uint64_t next_number;
    struct text *buckets[BUCKETS];
};

struct control *control_new(size_t max_count, size_t max_nbytes)
{
    struct control *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->max_count = max_count;
    c->max_nbytes = max_nbytes;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

static void text_free(struct text *t)
{
    free(t->bytes);
    free(t);
}

void control_free(struct control *c)
{
    if (!c)
        return;
    for (size_t b = 0; b < BUCKETS; b++) {
        while (c->buckets[b]) {
            struct text *t = c->buckets[b];
            c->buckets[b] = t->next;
            text_free(t);
        }
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static struct text **slot(struct control *c, uint64_t ino)
{
    struct text **at = &c->buckets[ino % BUCKETS];
    while (*at && (*at)->ino != ino)
        at = &(*at)->next;
    return at;
}

static void drop_if_unused(struct control *c, struct text **at)
{
    struct text *t = *at;
    if (t->lookup_count || t->pin_count)
        return;
    *at = t->next;
    c->count--;
    c->nbytes -= t->nbytes;
    text_free(t);
}

static void link_text(struct control *c, struct text *t)
{
    t->ino = TREE_TEXT_INO_BIT | c->next_number++;
    struct text **at = slot(c, t->ino);
    t->next = NULL;
    *at = t;
    c->count++;
    c->nbytes += t->nbytes;
}

int control_freeze(struct control *c, char *bytes, size_t nbytes, uint64_t *ino)
{
    struct text *t = malloc(sizeof *t);
    if (!t) {
        free(bytes);
        return ENOMEM;
    }
    *t = (struct text){.lookup_count = 1, .bytes = bytes, .nbytes = nbytes};
    pthread_mutex_lock(&c->lock);
    bool fits = c->count < c->max_count && c->nbytes + nbytes <= c->max_nbytes;
    if (fits) {
        link_text(c, t);
        *ino = t->ino;
    }
    pthread_mutex_unlock(&c->lock);
    if (!fits)
        text_free(t);
    return fits ? 0 : ENFILE;
}

const char *control_pin(struct control *c, uint64_t ino, size_t *nbytes)
{
    const char *bytes = NULL;
    pthread_mutex_lock(&c->lock);
    struct text *t = *slot(c, ino);
    if (t) {
        t->pin_count++;
        *nbytes = t->nbytes;
        bytes = t->bytes;
    }
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

void control_unpin(struct control *c, uint64_t ino)
{
    pthread_mutex_lock(&c->lock);
    struct text **at = slot(c, ino);
    (*at)->pin_count--;
    drop_if_unused(c, at);
    pthread_mutex_unlock(&c->lock);
}

bool control_lookup_again(struct control *c, uint64_t ino)
{
    pthread_mutex_lock(&c->lock);
    struct text *t = *slot(c, ino);
    if (t)
        t->lookup_count++;
    pthread_mutex_unlock(&c->lock);
    return t != NULL;
}

void control_forget(struct control *c, uint64_t ino, uint64_t lookup_count)
{
    pthread_mutex_lock(&c->lock);
    struct text **at = slot(c, ino);
    if (*at) {
        uint64_t held = (*at)->lookup_count;
        (*at)->lookup_count = held - (lookup_count < held ? lookup_count : held);
        drop_if_unused(c, at);
    }
    pthread_mutex_unlock(&c->lock);
}

void control_usage(struct control *c, size_t *count, size_t *nbytes)
{
    pthread_mutex_lock(&c->lock);
    *count = c->count;
    *nbytes = c->nbytes;
    pthread_mutex_unlock(&c->lock);
}

/* ---------------------------------------------------------------- status */

/* JSON is UTF-8, paths are bytes: what is not UTF-8 is shown with '?'. */
static json_t *text_value(const char *text)
{
    json_t *value = json_string(text);
    if (value)
        return value;
    char *copy = strdup(text);
    if (!copy)
        return NULL;
    for (char *p = copy; *p; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    value = json_string(copy);
    free(copy);
    return value;
}

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *shape_value(const struct zr_info *info)
{
    if (info->geometry != ZR_DENSE)
        return json_null();
    json_t *shape = json_array();
    for (uint32_t i = 0; i < info->ndim; i++)
        json_array_append_new(shape, number(info->item_shape[i]));
    return shape;
}

static json_t *store_value(const struct fs *fs)
{
    const struct zr_info *info = &fs->info;
    json_t *store = json_object();
    json_object_set_new(store, "path", text_value(info->path));
    json_object_set_new(store, "geometry", json_string(zr_geometry_name(info->geometry)));
    json_object_set_new(store, "codec", json_string(zr_codec_name(info->codec)));
    json_object_set_new(store, "dtype", text_value(info->dtype));
    json_object_set_new(store, "item_shape", shape_value(info));
    json_object_set_new(store, "length", number(info->length));
    json_object_set_new(store, "data_bytes", number(info->data_nbytes));
    json_object_set_new(store, "disk_bytes", number(info->disk_nbytes));
    json_object_set_new(store, "dict_bytes", number(info->dict_nbytes));
    json_object_set_new(store, "has_sidecar", json_boolean(info->has_sidecar));
    return store;
}

static json_t *options_value(const struct fs *fs)
{
    const struct options *o = fs->options;
    char octal[8];
    snprintf(octal, sizeof octal, "%03o", (unsigned)o->umask & 0777U);
    json_t *options = json_object();
    json_object_set_new(options, "allow_other", json_boolean(o->allow_other));
    json_object_set_new(options, "show_control", json_boolean(o->show_control));
    json_object_set_new(options, "checksums", json_boolean(o->checksums));
    json_object_set_new(options, "readdirplus",
                        json_string(options_readdirplus_name(o->readdirplus)));
    json_object_set_new(options, "cache", number(o->cache_nbytes));
    json_object_set_new(options, "uid", number(fs->uid));
    json_object_set_new(options, "gid", number(fs->gid));
    json_object_set_new(options, "umask", json_string(octal));
    json_object_set_new(options, "threads", number(fs->thread_count));
    json_object_set_new(options, "transport", json_string(transport_name(o->transport)));
    json_object_set_new(options, "spin", json_integer(fs->spin_nsec / 1000));
    return options;
}

static json_t *requests_value(const struct counters_sum *sum)
{
    json_t *requests = json_object();
    for (uint32_t op = 0; op < COUNTERS_OPCODES; op++)
        if (sum->requests[op] && counters_opcode_name(op))
            json_object_set_new(requests, counters_opcode_name(op), number(sum->requests[op]));
    return requests;
}

static json_t *events_value(const struct counters_sum *sum)
{
    json_t *events = json_object();
    for (int e = 0; e < EVENT_COUNT; e++)
        json_object_set_new(events, counters_event_name((enum counters_event)e),
                            number(sum->events[e]));
    return events;
}

static json_t *latency_value(const struct counters_sum *sum)
{
    static const struct {
        const char *name;
        double share;
    } POINTS[] = {
        {"p50", 0.5},
        {"p90", 0.9},
        {"p99", 0.99},
        {"max", 1.0},
    };
    json_t *latency = json_object();
    for (int k = 0; k < COUNTERS_TIMED; k++) {
        const uint64_t *buckets = sum->latency[k];
        if (counters_percentile(buckets, 1) == 0)
            continue;
        json_t *points = json_object();
        for (size_t p = 0; p < sizeof POINTS / sizeof *POINTS; p++)
            json_object_set_new(points, POINTS[p].name,
                                json_real(counters_percentile(buckets, POINTS[p].share)));
        json_object_set_new(latency, counters_timed_name((enum counters_timed)k), points);
    }
    return latency;
}

static json_t *memory_value(const struct fs *fs)
{
    uint64_t nbytes, entry_count;
    size_t text_count, text_nbytes;
    cache_usage(fs->cache, &nbytes, &entry_count);
    control_usage(fs->control, &text_count, &text_nbytes);
    json_t *memory = json_object();
    json_object_set_new(memory, "cached_records", number(entry_count));
    json_object_set_new(memory, "cached_bytes", number(nbytes));
    json_object_set_new(memory, "idle_buffer_bytes", number(zr_buffer_idle_nbytes()));
    json_object_set_new(memory, "control_texts", number(text_count));
    json_object_set_new(memory, "control_bytes", number(text_nbytes));
    return memory;
}

static json_t *damaged_entry(const struct fs *fs, const struct report_damage_entry *entry)
{
    char name[TREE_NAME_MAX];
    tree_name(&fs->tree, entry->record, name);
    json_t *value = json_object();
    json_object_set_new(value, "record", number(entry->record));
    json_object_set_new(value, "name", json_string(name));
    json_object_set_new(value, "code", json_string(zr_code_name(entry->code)));
    json_object_set_new(value, "message", text_value(entry->message));
    return value;
}

static json_t *damaged_value(const struct fs *fs)
{
    uint64_t failure_count = 0;
    json_t *records = json_array();
    struct report_damage_entry *entries = malloc(REPORT_DAMAGE_MAX * sizeof *entries);
    size_t count = entries ? report_damage_list(fs->damage, entries, &failure_count) : 0;
    for (size_t i = 0; i < count; i++)
        json_array_append_new(records, damaged_entry(fs, &entries[i]));
    free(entries);
    json_t *damaged = json_object();
    json_object_set_new(damaged, "failures", number(failure_count));
    json_object_set_new(damaged, "records", records);
    return damaged;
}

static json_t *warnings_value(const struct fs *fs)
{
    json_t *warnings = json_array();
    const char *warning = zr_reader_warning(fs->reader);
    if (warning)
        json_array_append_new(warnings, text_value(warning));
    return warnings;
}

static double uptime_sec(const struct fs *fs)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec * INT64_C(1000000000) + now.tv_nsec - fs->start_nsec) / 1e9;
}

static json_t *transport_value(const struct fs *fs)
{
    return json_string(transport_name(atomic_load(&fs->transport)));
}

static json_t *transport_hint(const struct fs *fs)
{
    if (atomic_load(&fs->transport) == TRANSPORT_URING)
        return json_string("mount with transport=classic for the other one");
    return json_string(transport_uring_advice);
}

static json_t *status_value(const struct fs *fs)
{
    struct counters_sum sum;
    counters_collect(fs->counters, &sum);
    json_t *status = json_object();
    json_object_set_new(status, "program", json_string("zrecordfs"));
    json_object_set_new(status, "version", json_string(zr_version()));
    json_object_set_new(status, "pid", json_integer(getpid()));
    json_object_set_new(status, "uptime_seconds", json_real(uptime_sec(fs)));
    json_object_set_new(status, "mountpoint", text_value(fs->mountpoint));
    json_object_set_new(status, "transport", transport_value(fs));
    json_object_set_new(status, "transport_hint", transport_hint(fs));
    json_object_set_new(status, "store", store_value(fs));
    json_object_set_new(status, "options", options_value(fs));
    json_object_set_new(status, "requests", requests_value(&sum));
    json_object_set_new(status, "counters", events_value(&sum));
    json_object_set_new(status, "latency_us", latency_value(&sum));
    json_object_set_new(status, "memory", memory_value(fs));
    json_object_set_new(status, "damaged", damaged_value(fs));
    json_object_set_new(status, "warnings", warnings_value(fs));
    json_object_set_new(status, "accepts", json_array()); /* no commands yet */
    return status;
}

char *control_status(const struct fs *fs, size_t *nbytes)
{
    json_t *status = status_value(fs);
    char *text = json_dumps(status, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(status);
    if (!text)
        return NULL;
    *nbytes = strlen(text) + 1;
    char *with_newline = realloc(text, *nbytes + 1);
    if (!with_newline) {
        free(text);
        return NULL;
    }
    memcpy(with_newline + *nbytes - 1, "\n", 2);
    return with_newline;
}
