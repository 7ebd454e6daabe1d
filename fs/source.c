/* SPDX-License-Identifier: MIT
 *
 * The table of sources, and their readers.
 *
 * A place number is a hash of the path below the mountpoint and, for a store, of
 * the time and size of its meta.zr; when two of them meet on one number, the
 * later one moves on to its next hash.  So numbers are the same after a remount
 * but for such a meeting (one in 10^8 for each pair).
 */
#include "source.h"

#include "archive.h"
#include "classes.h"
#include "mapped.h"
#include "probe.h"
#include "report.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    BUCKETS = 4096,
    OPEN_MAX_READERS = 256, /* idle ones beyond are closed: two or three files each */
    PROBE_MAX = 64
};

enum state { CLOSED, OPENING, OPEN };

struct entry {
    struct source source; /* first: sources are handed out as this */
    struct probe_stamp stamp;
    char *path, *relative;
    struct entry *chain; /* same bucket */
    /* Under the table's lock: */
    enum state state;
    unsigned users;
    uint64_t mapped_nbytes; /* what its reader took of the budget; of who opens and closes it */
    struct entry *older, *newer; /* open stores without users, by last use */
    struct entry *written_next;  /* archives that can be written; constant from then on */
};

struct sources {
    struct sources_options options;
    char *mountpoint;
    pthread_mutex_t lock;  /* what says so above, and everything below */
    pthread_cond_t opened; /* some entry left OPENING */
    struct entry *root;
    struct entry *buckets[BUCKETS];
    struct entry *oldest, *newest;
    struct entry *writable; /* archives, the latest first */
    unsigned open_count;
    _Atomic uint64_t mapped_left; /* without the lock */
};

static struct entry *entry_of(struct source *source)
{
    return (struct entry *)source;
}

static int fail(struct zr_error *err, int code, const char *path, const char *why)
{
    if (err) {
        *err = (struct zr_error){.code = code, .record = ZR_NO_RECORD, .offset = UINT64_MAX};
        snprintf(err->message, sizeof err->message, "%.800s: %s", path, why);
    }
    return code;
}

/* ---------------------------------------------------------------- readers */

/* Fills what a store shows while it is held. */
static int fill(const struct sources *s, struct entry *e, struct zr_error *err)
{
    struct source *source = &e->source;
    zr_reader_info(source->reader, &source->info);
    if (source->info.length > tree_max_length(e == s->root))
        return fail(err, ZR_E_TOO_LARGE, e->path,
                    "has more records than a store of a tree may have: mount it by itself");
    uint64_t per_shard = s->options.shard_length;
    tree_init(&source->names, source->info.length, ".npy");
    source->shard_count =
        per_shard ? source->info.length / per_shard + (source->info.length % per_shard != 0) : 0;
    tree_init(&source->shards, source->shard_count, "");
    return ZR_OK;
}

static bool is_same(const struct entry *e, const struct zr_info *info)
{
    return info->mtime_sec == e->stamp.sec && info->mtime_nsec == e->stamp.nsec;
}

static int open_archive(const struct sources *s, struct entry *e, struct zr_error *err)
{
    struct archive *a;
    int code = archive_open(&a, e->path, s->options.writable, err);
    if (code == ZR_OK && archive_max_index(a) > tree_max_length(e == s->root)) {
        archive_close(a);
        return fail(err, ZR_E_TOO_LARGE, e->path,
                    "has more rows than an archive of a tree may have: mount it by itself");
    }
    e->source.archive = code == ZR_OK ? a : NULL;
    if (code == ZR_OK && a->why_fixed)
        report(e == s->root ? LOG_WARNING : LOG_INFO, "%s: mounted read-only: %s", e->path,
               a->why_fixed);
    return code;
}

/* To be closed; NULL when there is none. */
static struct zr_reader *take_reader(struct sources *s, struct entry *e)
{
    struct zr_reader *reader = e->source.reader;
    e->source.reader = NULL;
    atomic_fetch_add(&s->mapped_left, e->mapped_nbytes);
    e->mapped_nbytes = 0;
    return reader;
}

static int open_reader(struct sources *s, struct entry *e, struct zr_error *err)
{
    if (e->source.kind == SOURCE_ARCHIVE)
        return open_archive(s, e, err);

    struct zr_reader_options options = {.checksums = s->options.checksums};
    e->mapped_nbytes = mapped_choose(&s->mapped_left, e->path, &options);
    int code = zr_reader_open(&e->source.reader, e->path, &options, err);
    if (code == ZR_OK)
        code = fill(s, e, err);
    if (code == ZR_OK && e != s->root && !is_same(e, &e->source.info))
        code = fail(err, ZR_E_NOT_FOUND, e->path, "another store is there by now");
    if (code != ZR_OK)
        zr_reader_close(take_reader(s, e));
    return code;
}

static void idle_remove(struct sources *s, struct entry *e)
{
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    e->older = e->newer = NULL;
}

static void idle_append(struct sources *s, struct entry *e)
{
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

/* The longest unused reader when there are too many, closed without the lock. */
static struct zr_reader *take_surplus(struct sources *s)
{
    struct entry *e = s->oldest;
    if (s->open_count <= OPEN_MAX_READERS || !e)
        return NULL;
    idle_remove(s, e);
    e->state = CLOSED;
    s->open_count--;
    return take_reader(s, e);
}

static void add_writable(struct sources *s, struct entry *e)
{
    e->written_next = s->writable;
    s->writable = e;
}

/* Opens e, which this thread has set to OPENING; called with the lock, which is
 * not held meanwhile. */
static int open_entry(struct sources *s, struct entry *e, struct zr_error *err)
{
    pthread_mutex_unlock(&s->lock);
    int code = open_reader(s, e, err);
    pthread_mutex_lock(&s->lock);
    e->state = code == ZR_OK ? OPEN : CLOSED;
    s->open_count += code == ZR_OK && e->source.kind == SOURCE_STORE;
    if (code == ZR_OK && archive_is_writable(&e->source))
        add_writable(s, e);
    pthread_cond_broadcast(&s->opened);
    return code;
}

/* One more user, with the lock. */
static int hold(struct sources *s, struct entry *e, struct zr_error *err)
{
    int code = ZR_OK;
    if (e->source.kind == SOURCE_FOLDER || e == s->root)
        return code; /* live as long as the mount */
    while (e->state == OPENING)
        pthread_cond_wait(&s->opened, &s->lock);
    if (e->state == CLOSED) {
        e->state = OPENING;
        code = open_entry(s, e, err);
    } else if (e->users == 0 && e->source.kind == SOURCE_STORE) {
        idle_remove(s, e);
    }
    e->users += code == ZR_OK;
    return code;
}

void source_release(struct sources *s, struct source *source)
{
    if (!source || source->kind == SOURCE_FOLDER || source == &s->root->source)
        return;
    struct entry *e = entry_of(source);
    pthread_mutex_lock(&s->lock);
    if (--e->users == 0 && e->source.kind == SOURCE_STORE)
        idle_append(s, e);
    struct zr_reader *surplus = take_surplus(s);
    pthread_mutex_unlock(&s->lock);
    zr_reader_close(surplus);
}

struct source *source_hold(struct sources *s, struct source *source)
{
    if (source->kind == SOURCE_FOLDER || source == &s->root->source)
        return source;
    pthread_mutex_lock(&s->lock);
    int code = hold(s, entry_of(source), NULL);
    pthread_mutex_unlock(&s->lock);
    return code == ZR_OK ? source : NULL;
}

/* ---------------------------------------------------------------- the table */

static void entry_free(struct entry *e)
{
    zr_reader_close(e->source.reader);
    archive_close(e->source.archive);
    classes_free(e->source.classes);
    free(e->path);
    free(e->relative);
    free(e);
}

static struct entry *find_place(const struct sources *s, uint32_t place)
{
    struct entry *e = s->buckets[place % BUCKETS];
    while (e && e->source.place != place)
        e = e->chain;
    return e;
}

/* Try n of the hash of a path and stamp. */
static uint64_t hash(const char *relative, const struct probe_stamp *stamp, unsigned n)
{
    uint64_t seed = XXH3_64bits_withSeed(stamp, sizeof *stamp, n);
    return XXH3_64bits_withSeed(relative, strlen(relative), seed);
}

static bool matches(const struct entry *e, const char *relative, enum source_kind kind,
                    const struct probe_stamp *stamp)
{
    return e->source.kind == kind && memcmp(&e->stamp, stamp, sizeof *stamp) == 0 &&
           strcmp(e->relative, relative) == 0;
}

/* The entry, or NULL and the free place that it is to have (0: none). */
static struct entry *find(const struct sources *s, const char *relative, enum source_kind kind,
                          const struct probe_stamp *stamp, uint64_t *free_hash)
{
    for (unsigned n = 0; n < PROBE_MAX; n++) {
        *free_hash = hash(relative, stamp, n);
        uint32_t place = (uint32_t)(*free_hash >> (64 - TREE_PLACE_BITS));
        struct entry *e = find_place(s, place);
        if (e && matches(e, relative, kind, stamp))
            return e;
        if (!e && place != 0)
            return NULL;
    }
    *free_hash = 0;
    return NULL;
}

static char *join(const char *folder, const char *name)
{
    char *path;
    size_t n = strlen(folder);
    const char *slash = n && folder[n - 1] != '/' ? "/" : "";
    return asprintf(&path, "%s%s%s", folder, slash, name) < 0 ? NULL : path;
}

/* Without a place yet. */
static struct entry *new_entry(const char *path, const char *relative)
{
    struct entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->path = strdup(path);
    e->relative = strdup(relative);
    if (!e->path || !e->relative) {
        entry_free(e);
        return NULL;
    }
    const char *slash = strrchr(e->relative, '/');
    e->source.path = e->path;
    e->source.relative = e->relative;
    e->source.name = slash ? slash + 1 : e->relative;
    return e;
}

static struct entry *add(struct sources *s, struct source *parent, struct entry *e, uint64_t h)
{
    e->source.parent = parent;
    e->source.place = (uint32_t)(h >> (64 - TREE_PLACE_BITS));
    e->source.generation = (uint32_t)h;
    e->source.mtime = (struct timespec){.tv_sec = e->stamp.sec, .tv_nsec = e->stamp.nsec};
    struct entry **bucket = &s->buckets[e->source.place % BUCKETS];
    e->chain = *bucket;
    *bucket = e;
    return e;
}

/* Folders are the same whatever time they have. */
static struct probe_stamp key_stamp(enum source_kind kind, const struct probe_stamp *stamp)
{
    static const struct probe_stamp NONE;
    return kind == SOURCE_FOLDER ? NONE : *stamp;
}

static struct entry *find_or_add(struct sources *s, struct source *parent, const char *path,
                                 const char *relative, enum source_kind kind,
                                 const struct probe_stamp *stamp)
{
    uint64_t h;
    struct probe_stamp key = key_stamp(kind, stamp);
    struct entry *e = find(s, relative, kind, &key, &h);
    if (e || !h)
        return e;
    e = new_entry(path, relative);
    if (!e)
        return NULL;
    e->source.kind = kind;
    e->stamp = key;
    return add(s, parent, e, h);
}

/* ---------------------------------------------------------------- children */

/* The archive of that path as writes by way of the mount left it: a later time of the file
 * does not make another source. */
static struct entry *find_written(struct sources *s, const char *relative)
{
    pthread_mutex_lock(&s->lock);
    struct entry *e = s->writable;
    pthread_mutex_unlock(&s->lock);
    for (; e; e = e->written_next)
        if (strcmp(e->relative, relative) == 0 &&
            archive_writes_are_at(&e->source.archive->writes, e->path))
            return e;
    return NULL;
}

static int hold_at(struct sources *s, struct source *folder, const char *path, const char *relative,
                   struct source **out, struct zr_error *err)
{
    enum source_kind kind;
    struct probe_stamp stamp;
    int failure = probe_classify(s->mountpoint, path, &kind, &stamp);
    if (failure) {
        fail(err, ZR_E_IO, path, strerror(failure));
        return failure;
    }
    struct entry *e = kind == SOURCE_ARCHIVE ? find_written(s, relative) : NULL;
    pthread_mutex_lock(&s->lock);
    if (!e)
        e = find_or_add(s, folder, path, relative, kind, &stamp);
    int code = e ? hold(s, e, err) : fail(err, ZR_E_NOMEM, path, "out of memory");
    pthread_mutex_unlock(&s->lock);
    if (code == ZR_OK)
        *out = &e->source;
    return code == ZR_OK ? 0 : zr_code_errno(code) == ENOMEM ? ENOMEM : EIO;
}

int sources_child(struct sources *s, struct source *folder, const char *name, struct source **out,
                  struct zr_error *err)
{
    *out = NULL;
    if (name[0] == '.')
        return ENOENT; /* also what a writer is still building */
    char *path = join(folder->path, name), *relative = join(folder->relative, name);
    int failure = path && relative ? hold_at(s, folder, path, relative, out, err) : ENOMEM;
    free(path);
    free(relative);
    return failure;
}

/* ---------------------------------------------------------------- places */

static void ignore(void *ctx, struct source *source, const char *relative, const char *why)
{
    (void)ctx, (void)source, (void)relative, (void)why;
}

struct source *sources_hold_place(struct sources *s, uint32_t place)
{
    if (place == 0)
        return &s->root->source;
    pthread_mutex_lock(&s->lock);
    struct entry *e = find_place(s, place);
    if (!e && s->root->source.kind == SOURCE_FOLDER) {
        /* A number from before a remount, as NFS clients have: look at all there is. */
        pthread_mutex_unlock(&s->lock);
        sources_walk(s, &s->root->source, ignore, NULL);
        pthread_mutex_lock(&s->lock);
        e = find_place(s, place);
    }
    bool is_held = e && hold(s, e, NULL) == ZR_OK;
    pthread_mutex_unlock(&s->lock);
    return is_held ? &e->source : NULL;
}

/* ---------------------------------------------------------------- the whole */

struct source *sources_root(struct sources *s)
{
    return &s->root->source;
}

bool sources_is_lone(const struct sources *s)
{
    return s->root->source.kind != SOURCE_FOLDER;
}

bool sources_are_writable(const struct sources *s)
{
    return s->options.writable;
}

bool sources_refresh_left(struct sources *s, const atomic_bool *stopping)
{
    bool some = false;
    pthread_mutex_lock(&s->lock);
    struct entry *e = s->writable;
    pthread_mutex_unlock(&s->lock);
    for (; e && !atomic_load(stopping); e = e->written_next) {
        struct archive_writes *writes = &e->source.archive->writes;
        if (!atomic_load(&writes->stale))
            continue;
        if (archive_writes_are_at(writes, e->path))
            some = true;
        else
            archive_writes_refresh(writes, e->path, stopping);
    }
    return some;
}

struct found {
    size_t count;   /* stores, archives and broken ones */
    char why[1024]; /* what could not be looked at first */
};

static void count_store(void *ctx, struct source *source, const char *relative, const char *why)
{
    (void)relative;
    struct found *found = ctx;
    if (!source || source->kind != SOURCE_FOLDER)
        found->count++;
    else if (why && !*found->why)
        snprintf(found->why, sizeof found->why, "%s", why);
}

static int no_store(const struct entry *e, const struct found *found, struct zr_error *err)
{
    if (!*found->why)
        return fail(err, ZR_E_FORMAT, e->path,
                    "not a zrecord store (it has no meta.zr), and no store is below it");
    fail(err, ZR_E_IO, e->path, "");
    if (err)
        snprintf(err->message, sizeof err->message, "%s", found->why);
    return ZR_E_IO;
}

static int open_folder(struct sources *s, struct zr_error *err)
{
    struct entry *e = s->root;
    struct stat st;
    struct found found = {0};
    e->source.kind = SOURCE_FOLDER;
    /* Its paths are looked up all the time: they must not lead into the mount. */
    if (probe_is_inside(e->path, s->mountpoint))
        return fail(err, ZR_E_INVALID, e->path,
                    "a folder of stores cannot be mounted on itself or on what holds it");
    if (stat(e->path, &st) == 0)
        e->source.mtime = st.st_mtim;
    sources_walk(s, &e->source, count_store, &found);
    s->options.writable = s->writable != NULL;
    return found.count ? ZR_OK : no_store(e, &found, err);
}

/* What lies at the path; a folder without a store in it is one of stores. */
static int classify_root(struct entry *e, struct zr_error *err)
{
    struct stat st;
    if (stat(e->path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        e->source.kind = probe_archive(e->path, &e->stamp) ? SOURCE_ARCHIVE : SOURCE_STORE;
        return ZR_OK;
    }
    int failure = probe_store(e->path, &e->stamp);
    e->source.kind = failure ? SOURCE_FOLDER : SOURCE_STORE;
    return failure && failure != ENOENT ? fail(err, ZR_E_IO, e->path, strerror(failure)) : ZR_OK;
}

static int open_root(struct sources *s, struct zr_error *err)
{
    struct entry *e = s->root;
    int code = classify_root(e, err);
    if (code != ZR_OK)
        return code;
    if (e->source.kind == SOURCE_FOLDER)
        return open_folder(s, err);
    bool is_archive = e->source.kind == SOURCE_ARCHIVE;
    code = open_reader(s, e, err);
    if (code != ZR_OK)
        return code;
    s->options.writable = archive_is_writable(&e->source);
    if (is_archive) {
        if (s->options.writable)
            add_writable(s, e);
        e->state = OPEN;
        e->source.mtime = (struct timespec){.tv_sec = e->stamp.sec, .tv_nsec = e->stamp.nsec};
        e->source.generation = (uint32_t)hash("", &e->stamp, 0);
        return ZR_OK;
    }
    const struct zr_info *info = &e->source.info;
    e->state = OPEN;
    e->source.mtime = (struct timespec){.tv_sec = info->mtime_sec, .tv_nsec = info->mtime_nsec};
    e->stamp = (struct probe_stamp){info->mtime_sec, info->mtime_nsec, 0};
    e->source.generation = (uint32_t)(info->identity ^ hash("", &e->stamp, 0));
    return ZR_OK;
}

int sources_new(struct sources **out, const struct sources_options *options, struct zr_error *err)
{
    *out = NULL;
    struct sources *s = calloc(1, sizeof *s);
    if (!s)
        return fail(err, ZR_E_NOMEM, options->path, "out of memory");
    s->options = *options;
    s->mountpoint = strdup(options->mountpoint);
    s->root = new_entry(options->path, "");
    s->mapped_left = MAPPED_BUDGET_NBYTES;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->opened, NULL);
    int code = s->mountpoint && s->root ? open_root(s, err)
                                        : fail(err, ZR_E_NOMEM, options->path, "out of memory");
    if (code == ZR_OK)
        *out = s;
    else
        sources_free(s);
    return code;
}

void sources_free(struct sources *s)
{
    if (!s)
        return;
    for (size_t b = 0; b < BUCKETS; b++) {
        while (s->buckets[b]) {
            struct entry *e = s->buckets[b];
            s->buckets[b] = e->chain;
            entry_free(e);
        }
    }
    if (s->root)
        entry_free(s->root);
    pthread_cond_destroy(&s->opened);
    pthread_mutex_destroy(&s->lock);
    free(s->mountpoint);
    free(s);
}
