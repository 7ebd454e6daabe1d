/* SPDX-License-Identifier: MIT
 *
 * The control file: the status text, and frozen texts as files.
 */
#include "control.h"

#include "archive.h"
#include "ops.h"
#include "transport.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static json_t *text_value_or_null(const char *text)
{
    return text ? text_value(text) : json_null();
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

/* "path", and where that is not UTF-8 its bytes too. */
static void set_path(json_t *store, const char *path)
{
    json_object_set_new(store, "path", text_value(path));
    json_t *exact = json_string(path);
    size_t nbytes = strlen(path);
    char *hex = exact ? NULL : malloc(2 * nbytes + 1);
    for (size_t i = 0; hex && i < nbytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)path[i]);
    if (hex)
        json_object_set_new(store, "path_hex", json_string(hex));
    free(hex);
    json_decref(exact);
}

/* Null without rw, which nobody asked for then. */
static json_t *why_read_only(const struct fs *fs, const struct archive *a)
{
    const char *why = "records are decoded from what is stored: a store is built once, and read";
    if (!fs->options->writable_leaves || (a && a->writable))
        return json_null();
    if (a)
        why = a->why_fixed ? a->why_fixed
                           : "no archive that takes writes was there when the folder was mounted";
    return text_value(why);
}

static json_t *store_value(const struct fs *fs, const struct source *source)
{
    const struct zr_info *info = &source->info;
    json_t *store = json_object();
    json_object_set_new(store, "name", text_value(source->relative));
    set_path(store, info->path);
    json_object_set_new(store, "mtime_ns",
                        json_integer(info->mtime_sec * INT64_C(1000000000) + info->mtime_nsec));
    json_object_set_new(store, "geometry", json_string(zr_geometry_name(info->geometry)));
    json_object_set_new(store, "codec", json_string(zr_codec_name(info->codec)));
    json_object_set_new(store, "dtype", text_value(info->dtype));
    json_object_set_new(store, "item_shape", shape_value(info));
    json_object_set_new(store, "length", number(info->length));
    json_object_set_new(store, "data_bytes", number(info->data_nbytes));
    json_object_set_new(store, "disk_bytes", number(info->disk_nbytes));
    json_object_set_new(store, "dict_bytes", number(info->dict_nbytes));
    json_object_set_new(store, "has_sidecar", json_boolean(info->has_sidecar));
    json_object_set_new(store, "warning", text_value_or_null(zr_reader_warning(source->reader)));
    json_object_set_new(store, "why_read_only", why_read_only(fs, NULL));
    return store;
}

static json_t *archive_value(const struct fs *fs, const struct source *source)
{
    struct archive *a = source->archive;
    char refused[ARCHIVE_WRITES_WHY_MAX];
    json_t *archive = json_object();
    json_object_set_new(archive, "name", text_value(source->relative));
    set_path(archive, a->path);
    json_object_set_new(
        archive, "mtime_ns",
        json_integer(source->mtime.tv_sec * INT64_C(1000000000) + source->mtime.tv_nsec));
    json_object_set_new(archive, "disk_bytes", number(a->nbytes));
    json_object_set_new(archive, "leaves", number(a->tree->leaf_count));
    json_object_set_new(archive, "writable", json_boolean(a->writable));
    json_object_set_new(archive, "why_read_only", why_read_only(fs, a));
    archive_writes_last_refused(&a->writes, refused);
    json_object_set_new(archive, "refused_write", text_value_or_null(*refused ? refused : NULL));
    return archive;
}

static json_t *options_value(const struct fs *fs)
{
    const struct options *o = fs->options;
    char octal[8];
    snprintf(octal, sizeof octal, "%03o", (unsigned)o->umask & 0777U);
    json_t *options = json_object();
    json_object_set_new(options, "allow_other", json_boolean(o->allow_other));
    json_object_set_new(options, "control", json_string(o->writable_control ? "rw" : "ro"));
    json_object_set_new(options, "rw", json_boolean(sources_are_writable(fs->sources)));
    json_object_set_new(options, "shard", o->shard_length ? number(o->shard_length) : json_null());
    json_object_set_new(options, "preview", json_boolean(o->preview));
    json_object_set_new(options, "classes", text_value_or_null(o->classes));
    json_object_set_new(options, "log", json_string(report_level()));
    json_object_set_new(options, "show_control", json_boolean(o->show_control));
    json_object_set_new(options, "checksums", json_boolean(o->checksums));
    json_object_set_new(options, "readdirplus",
                        json_string(options_readdirplus_name(o->readdirplus)));
    json_object_set_new(options, "cache", number(o->cache_nbytes));
    json_object_set_new(options, "timeout", number(o->timeout_sec));
    json_object_set_new(options, "prefetch",
                        o->prefetch == WARM_AUTO ? json_string("auto") : json_integer(o->prefetch));
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
    minted_usage(fs->minted, &text_count, &text_nbytes);
    json_t *memory = json_object();
    json_object_set_new(memory, "cached_records", number(entry_count));
    json_object_set_new(memory, "cached_bytes", number(nbytes));
    json_object_set_new(memory, "idle_buffer_bytes", number(zr_buffer_idle_nbytes()));
    json_object_set_new(memory, "control_texts", number(text_count));
    json_object_set_new(memory, "control_bytes", number(text_nbytes));
    return memory;
}

static json_t *damaged_entry(const struct report_damage_entry *entry)
{
    json_t *value = json_object();
    json_object_set_new(value, "store", text_value(entry->source->relative));
    json_object_set_new(value, "record", number(entry->record));
    json_object_set_new(value, "name", json_string(entry->name));
    json_object_set_new(value, "code", json_string(zr_code_name(entry->code)));
    json_object_set_new(value, "message", text_value(entry->message));
    return value;
}

static bool is_below(const struct source *source, const struct source *folder)
{
    while (source && source != folder)
        source = source->parent;
    return source != NULL;
}

static json_t *damaged_value(const struct fs *fs, const struct source *scope)
{
    uint64_t failure_count = 0;
    json_t *records = json_array();
    struct report_damage_entry *entries = malloc(REPORT_DAMAGE_MAX * sizeof *entries);
    size_t count = entries ? report_damage_list(fs->damage, entries, &failure_count) : 0;
    for (size_t i = 0; i < count; i++)
        if (is_below(entries[i].source, scope))
            json_array_append_new(records, damaged_entry(&entries[i]));
    free(entries);
    json_t *damaged = json_object();
    json_object_set_new(damaged, "failures", number(failure_count));
    json_object_set_new(damaged, "records", records);
    return damaged;
}

/* Work that was asked for and is not done. */
static json_t *pending_value(const struct fs *fs)
{
    json_t *pending = json_object();
    json_object_set_new(pending, "prefetch_records", number(warm_pending(fs->warm)));
    json_object_set_new(pending, "ahead_records", number(warm_ahead_pending(fs->warm)));
    json_object_set_new(pending, "drop_records", number(janitor_pending(fs->janitor)));
    return pending;
}

/* What may be asked, and how. */
static json_t *accepts_value(const struct fs *fs)
{
    json_t *accepts = json_array();
    const struct commands_entry *entry;
    for (size_t i = 0; (entry = commands_list(i)); i++) {
        json_t *value = json_object();
        json_t *by = json_pack("[s]", "ioctl");
        if (fs->options->writable_control)
            json_array_append_new(by, json_string("write"));
        json_object_set_new(value, "command", json_string(entry->usage));
        json_object_set_new(value, "does", json_string(entry->help));
        json_object_set_new(value, "owner_only", json_boolean(entry->owner_only));
        json_object_set_new(value, "by", by);
        json_array_append_new(accepts, value);
    }
    return accepts;
}

static json_t *failure_value(const struct fs *fs)
{
    struct commands_failure failure;
    if (!commands_last_failure(fs->commands, &failure))
        return json_null();
    json_t *value = json_object();
    json_object_set_new(value, "command", text_value(failure.command));
    json_object_set_new(value, "message", text_value(failure.message));
    return value;
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

/* ---------------------------------------------------------------- stores */

struct inventory {
    const struct fs *fs;
    json_t *stores, *archives, *broken, *warnings;
    bool has_labels; /* some store that classes= names */
};

static void add_warning(struct inventory *in, const char *text)
{
    if (text && *text)
        json_array_append_new(in->warnings, text_value(text));
}

static void add_classes_warning(struct inventory *in, const struct source *source)
{
    char text[CLASSES_WARNING_NBYTES];
    if (!classes_are_of(in->fs, source))
        return;
    in->has_labels = true;
    classes_warning(source, text);
    add_warning(in, text);
}

static void add_store(struct inventory *in, const struct source *source)
{
    json_array_append_new(in->stores, store_value(in->fs, source));
    add_warning(in, zr_reader_warning(source->reader));
    add_classes_warning(in, source);
}

static void add_broken(struct inventory *in, const char *relative, const char *why)
{
    json_t *value = json_object();
    json_object_set_new(value, "name", text_value(relative));
    json_object_set_new(value, "message", text_value(why));
    json_array_append_new(in->broken, value);
}

static void add_found(void *ctx, struct source *source, const char *relative, const char *why)
{
    struct inventory *in = ctx;
    if (why)
        add_broken(in, relative, why);
    else if (source->kind == SOURCE_STORE)
        add_store(in, source);
    else if (source->kind == SOURCE_ARCHIVE)
        json_array_append_new(in->archives, archive_value(in->fs, source));
}

/* "store" where there is one, "stores", "archives" and "broken" in any case. */
static void set_stores(const struct fs *fs, struct source *scope, json_t *status)
{
    struct inventory in = {fs, json_array(), json_array(), json_array(), json_array(), false};
    bool is_store = scope->kind == SOURCE_STORE;
    if (scope->kind != SOURCE_FOLDER)
        add_found(&in, scope, "", NULL);
    else
        sources_walk(fs->sources, scope, add_found, &in);
    if (fs->options->classes && !in.has_labels && scope == sources_root(fs->sources)) {
        char text[CLASSES_WARNING_NBYTES];
        snprintf(text, sizeof text, CLASSES_NONE, fs->options->classes, scope->path);
        add_warning(&in, text);
    }
    json_object_set_new(status, "source", text_value(scope->path));
    json_object_set_new(status, "store", is_store ? store_value(fs, scope) : json_null());
    json_object_set_new(status, "stores", in.stores);
    json_object_set_new(status, "archives", in.archives);
    json_object_set_new(status, "broken", in.broken);
    json_object_set_new(status, "warnings", in.warnings);
}

/* ---------------------------------------------------------------- the whole */

static json_t *status_value(const struct fs *fs, struct source *scope)
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
    set_stores(fs, scope, status);
    json_object_set_new(status, "options", options_value(fs));
    json_object_set_new(status, "requests", requests_value(&sum));
    json_object_set_new(status, "counters", events_value(&sum));
    json_object_set_new(status, "latency_us", latency_value(&sum));
    json_object_set_new(status, "memory", memory_value(fs));
    json_object_set_new(status, "pending", pending_value(fs));
    json_object_set_new(status, "damaged", damaged_value(fs, scope));
    json_object_set_new(status, "accepts", accepts_value(fs));
    json_object_set_new(status, "last_failure", failure_value(fs));
    return status;
}

char *control_status(const struct fs *fs, struct source *scope, size_t *nbytes)
{
    json_t *status = status_value(fs, scope);
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

/* ---------------------------------------------------------------- frozen texts */

int control_child(struct fs *fs, const struct node *dir, struct node *child)
{
    counters_add(fs->counters, EVENT_CONTROL_LOOKUPS, 1);
    struct minted_wish wish = {.kind = &node_text, .source = dir->source};
    struct minted *text;
    wish.bytes = control_status(fs, dir->source, &wish.nbytes);
    int failure = wish.bytes ? minted_get(fs->minted, &wish, &text) : ENOMEM;
    if (failure)
        return failure;
    struct source *source = source_hold(fs->sources, dir->source);
    *child = (struct node){.ino = text->ino, .kind = &node_text, .source = source, .minted = text};
    return 0;
}

static int text_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    node_file_attr(fs, node, node->minted->nbytes, st);
    if (fs->options->writable_control)
        st->st_mode |= S_IWUSR & ~fs->options->umask;
    /* One number for those who look at numbers; the text is found by another. */
    st->st_ino = node_of(fs, &node_text, node->source, TREE_PLAIN, TREE_CONTROL).ino;
    return 0;
}

static int text_read(fuse_req_t req, struct fs *fs, const struct node *node, size_t size, off_t off)
{
    counters_add(fs->counters, EVENT_CONTROL_READS, 1);
    node_reply(req, node->minted->bytes, node->minted->nbytes, size, off);
    return 0;
}

static int text_write(struct fs *fs, const struct node *node, const char *buf, size_t nbytes,
                      off_t off)
{
    (void)off; /* each write is lines of its own */
    return commands_run_lines(fs, node->source, buf, nbytes);
}

static void text_command(struct fs *fs, const struct node *node, bool is_owner,
                         struct zr_mount_ctl *ctl)
{
    char answer[COMMANDS_WORDS_MAX];
    size_t nbytes = ctl->nbytes < sizeof ctl->text ? ctl->nbytes : sizeof ctl->text;
    ctl->failure = commands_run(fs, node->source, is_owner, ctl->text, nbytes, answer);
    ctl->nbytes = (uint32_t)strlen(answer);
    memset(ctl->text, 0, sizeof ctl->text);
    memcpy(ctl->text, answer, ctl->nbytes);
}

static int text_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    enum source_kind kind = node->source->kind;
    return node_same_source(fs, node,
                            kind == SOURCE_STORE     ? &node_store
                            : kind == SOURCE_ARCHIVE ? &node_archive_level
                                                     : &node_folder,
                            TREE_FOLDER, parent);
}

/* Only the name expires: the text under its number never changes. */
const struct node_kind node_text = {
    .type = S_IFREG,
    .entry_sec = 0,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = text_parent,
    .attr = text_attr,
    .read = text_read,
    .write = text_write,
    .command = text_command,
};
