/* SPDX-License-Identifier: MIT
 *
 * Labels as folders.  With one other store in the folder a file is called as its record,
 * with several "00000042.STREAM.npy", so that either way the folder is the label, which is
 * what loaders of class folders go by.
 *
 * The number of such a folder follows from the label store and from which stores are
 * beside it, so its files may be remembered for ever.
 */
#include "classes.h"

#include "labels.h"
#include "ops.h"
#include "probe.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_STREAMS = 64, RANK_BITS = 16, NAME_NBYTES = 512 };
_Static_assert(LABELS_MAX_COUNT <= 1 << RANK_BITS, "a rank and a hash share an index");
static const int64_t FRESH_NSEC = 500000000;

/* The stores whose records a label's folder holds, by name. */
struct streams {
    size_t count;
    uint32_t hash;                    /* 16 bits, of which they are */
    struct source *list[MAX_STREAMS]; /* not holds */
};

struct classes {
    struct labels *labels; /* NULL: it has none that are understood */
    struct streams streams;
    int64_t checked_nsec;
    char warning[CLASSES_WARNING_NBYTES];
};

/* Protects the making of classes, and their streams.  Labels are read under it: who asks for
 * class folders meanwhile has to wait for them anyway. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void classes_free(struct classes *c)
{
    if (!c)
        return;
    labels_free(c->labels);
    free(c);
}

static int64_t now_nsec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---------------------------------------------------------------- streams */

static int by_name(const void *a, const void *b)
{
    const struct source *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static void finish_streams(struct streams *found)
{
    uint32_t places[MAX_STREAMS] = {0};
    qsort(found->list, found->count, sizeof found->list / MAX_STREAMS, by_name);
    for (size_t i = 0; i < found->count; i++)
        places[i] = found->list[i]->place;
    found->hash = (uint32_t)XXH3_64bits(places, found->count * sizeof *places) & 0xffff;
}

static bool is_stream(const struct source *source, const struct source *label_store)
{
    return source->kind == SOURCE_STORE && source != label_store &&
           source->info.length == label_store->info.length;
}

/* other: the name of something else that is there, or "". */
static void find_streams(struct fs *fs, struct source *folder, const struct source *label_store,
                         struct streams *found, char other[NAME_NBYTES])
{
    struct probe_name *names;
    size_t count;
    *found = (struct streams){0};
    other[0] = '\0';
    if (probe_names(folder->path, &names, &count) != 0)
        return;
    for (size_t i = 0; i < count && found->count < MAX_STREAMS; i++) {
        struct source *source;
        if (sources_child(fs->sources, folder, names[i].name, &source, NULL) != 0)
            continue;
        if (is_stream(source, label_store))
            found->list[found->count++] = source;
        else if (source != label_store)
            snprintf(other, NAME_NBYTES, "%s", names[i].name);
        source_release(fs->sources, source);
    }
    probe_names_free(names, count);
    finish_streams(found);
}

/* ---------------------------------------------------------------- classes of a folder */

/* With the lock, as what follows. */
static void look_beside(struct fs *fs, struct source *label_store, struct classes *c)
{
    char other[NAME_NBYTES], text[CLASSES_WARNING_NBYTES] = "";
    struct source *folder = label_store->parent;
    find_streams(fs, folder, label_store, &c->streams, other);
    if (*other)
        snprintf(text, sizeof text,
                 "%.600s: %.255s is no stream of the %llu records of %.255s: loaders of class "
                 "folders take it for a class, or cannot reach it behind one of its name",
                 folder->path, other, (unsigned long long)label_store->info.length,
                 label_store->name);
    if (*text && strcmp(text, c->warning) != 0)
        report(LOG_WARNING, "%s", text);
    memcpy(c->warning, text, sizeof text);
    c->checked_nsec = now_nsec();
}

static struct classes *make(struct source *label_store)
{
    struct zr_error err;
    struct classes *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    if (labels_new(&c->labels, label_store->reader, &err) != ZR_OK) {
        report(LOG_WARNING, "%s", err.message);
        snprintf(c->warning, sizeof c->warning, "%s", err.message);
    }
    c->checked_nsec = -FRESH_NSEC;
    label_store->classes = c;
    return c;
}

/* What a mirrored folder's classes are at this moment; false when it has none. */
struct view {
    struct source *label_store; /* held */
    const struct labels *labels;
    struct streams streams;
};

static bool view_of_store(struct fs *fs, struct source *label_store, struct view *view)
{
    pthread_mutex_lock(&lock);
    struct classes *c = label_store->classes ? label_store->classes : make(label_store);
    bool has_labels = c && c->labels;
    if (has_labels && now_nsec() - c->checked_nsec >= FRESH_NSEC)
        look_beside(fs, label_store, c);
    if (has_labels)
        *view = (struct view){label_store, c->labels, c->streams};
    pthread_mutex_unlock(&lock);
    return has_labels;
}

static bool view_of(struct fs *fs, struct source *folder, struct view *view)
{
    struct source *store;
    if (!fs->options->classes ||
        sources_child(fs->sources, folder, fs->options->classes, &store, NULL) != 0)
        return false;
    if (store->kind == SOURCE_STORE && view_of_store(fs, store, view))
        return true;
    source_release(fs->sources, store);
    return false;
}

static void leave(struct fs *fs, struct view *view)
{
    source_release(fs->sources, view->label_store);
}

static struct node label_node(const struct fs *fs, const struct view *view, size_t rank)
{
    uint64_t index = (uint64_t)view->streams.hash << RANK_BITS | rank;
    struct node node = node_of(fs, &node_label, view->label_store, TREE_LABEL, index);
    node.id = rank;
    return node;
}

void classes_identify(struct fs *fs, struct node *node, struct tree_ino parts)
{
    struct view view;
    if (!classes_are_of(fs, node->source) || !view_of_store(fs, node->source, &view))
        return;
    node->id = parts.index & ((1U << RANK_BITS) - 1);
    if (parts.index >> RANK_BITS == view.streams.hash && node->id < labels_count(view.labels))
        node->kind = &node_label;
}

bool classes_are_of(const struct fs *fs, const struct source *store)
{
    return fs->options->classes && strcmp(store->name, fs->options->classes) == 0;
}

void classes_warning(const struct source *label_store, char text[CLASSES_WARNING_NBYTES])
{
    pthread_mutex_lock(&lock);
    const struct classes *c = label_store->classes;
    snprintf(text, CLASSES_WARNING_NBYTES, "%s", c ? c->warning : "");
    pthread_mutex_unlock(&lock);
}

bool classes_hide(struct fs *fs, struct source *folder, const struct source *child)
{
    struct view view;
    size_t rank;
    if (!view_of(fs, folder, &view))
        return false;
    bool hides = child == view.label_store || labels_find(view.labels, child->name, &rank);
    for (size_t i = 0; i < view.streams.count; i++)
        hides |= child == view.streams.list[i];
    leave(fs, &view);
    return hides;
}

bool classes_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    struct view view;
    bool has_room = true;
    if (!view_of(fs, dir->source, &view))
        return true;
    size_t rank = pos > CLASSES_FIRST_POSITION ? (size_t)(pos - CLASSES_FIRST_POSITION) : 0;
    for (; rank < labels_count(view.labels) && has_room; rank++) {
        struct node child = label_node(fs, &view, rank);
        has_room = listing_add(l, labels_name(view.labels, rank), &child,
                               CLASSES_FIRST_POSITION + rank + 1);
    }
    leave(fs, &view);
    return has_room;
}

int classes_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    struct view view;
    size_t rank;
    if (!view_of(fs, dir->source, &view))
        return ENOENT;
    if (labels_find(view.labels, name, &rank)) {
        *child = label_node(fs, &view, rank); /* takes over the hold */
        return 0;
    }
    leave(fs, &view);
    return ENOENT;
}

/* ---------------------------------------------------------------- a label's folder */

static void file_name(const struct streams *streams, size_t stream, uint64_t id,
                      char name[NAME_NBYTES])
{
    const struct source *source = streams->list[stream];
    struct tree names;
    tree_init(&names, source->info.length, streams->count > 1 ? "" : ".npy");
    size_t n = tree_name(&names, id, name);
    if (streams->count > 1)
        snprintf(name + n, NAME_NBYTES - n, ".%s.npy", source->name);
}

/* The stream and record of a file name. */
static bool parse_name(const struct streams *streams, const char *text, size_t *stream,
                       uint64_t *id)
{
    char name[NAME_NBYTES];
    char *end;
    errno = 0;
    *id = strtoull(text, &end, 10);
    for (*stream = 0; errno == 0 && *stream < streams->count; ++*stream) {
        file_name(streams, *stream, *id, name);
        if (strcmp(name, text) == 0)
            return true;
    }
    return false;
}

static int label_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    struct view view;
    size_t stream;
    uint64_t id;
    if (!view_of_store(fs, dir->source, &view))
        return ESTALE;
    if (!parse_name(&view.streams, name, &stream, &id) || !labels_has(view.labels, dir->id, id))
        return ENOENT;
    struct source *source = source_hold(fs->sources, view.streams.list[stream]);
    if (!source)
        return ESTALE;
    *child = records_node(fs, source, id);
    return 0;
}

static int label_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    struct view view;
    char name[NAME_NBYTES];
    size_t count;
    if (!listing_dots(l, dir, pos) || !view_of_store(fs, dir->source, &view))
        return 0;
    const uint32_t *ids = labels_ids(view.labels, dir->id, &count);
    uint64_t at = pos > LISTING_AFTER_DOTS ? pos - LISTING_AFTER_DOTS : 0;
    for (bool has_room = true; has_room && at < count * view.streams.count; at++) {
        size_t stream = at % view.streams.count;
        struct source *source = source_hold(fs->sources, view.streams.list[stream]);
        if (!source)
            continue; /* gone meanwhile */
        struct node child = records_node(fs, source, ids[at / view.streams.count]);
        file_name(&view.streams, stream, child.id, name);
        has_room = listing_add(l, name, &child, LISTING_AFTER_DOTS + at + 1);
        source_release(fs->sources, source);
    }
    return 0;
}

static int label_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    *parent = node_of(fs, &node_folder, node->source->parent, TREE_PLAIN, TREE_FOLDER);
    return 0;
}

const struct node_kind node_label = {
    .type = S_IFDIR,
    .entry_sec = NODE_FRESH_SEC, /* other stores may come beside it */
    .attr_sec = NODE_FOREVER_SEC,
    .absent_sec = NODE_FOREVER_SEC,
    .child = label_child,
    .list = label_list,
    .parent = label_parent,
    .attr = node_dir_attr,
};
