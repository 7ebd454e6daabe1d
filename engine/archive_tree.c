/* SPDX-License-Identifier: MIT
 *
 * The tree of an archive: levels, leaves, and where each leaf's payload lies.
 *
 * Levels are taken breadth first from a queue that is the result itself, so depth
 * costs no stack.  Every leaf is checked here against its member: what this file
 * lets pass can be used without another look.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "archive_meta.h"

/* ---------------------------------------------------------------- the result */

#define PLACE_COUNT 128 /* leaves whose headers a thread reads at a time */

struct tree {
    struct zr_archive_tree public; /* first: the public pointer is this one */
    const struct zr_archive *a;
    struct zr_archive_level *levels;
    struct zr_archive_leaf *leaves;
    size_t level_capacity, leaf_capacity;
    struct zri_block *memory;
    uint8_t *used; /* by member: an enum zri_used */
    bool has_stacks;
    bool ran_out;          /* of memory, where an answer was yes or no */
    atomic_bool misplaced; /* some local header is wrong */
};

static int no_memory(const struct tree *t, struct zr_error *err)
{
    return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", t->a->path);
}

static int level_failed(const struct tree *t, const char *path, const char *why,
                        struct zr_error *err)
{
    int code = why == zri_out_of_memory ? ZR_E_NOMEM : ZR_E_FORMAT;
    return zri_fail(err, code, "%s: %s%smeta.json: %s", t->a->path, path, *path ? "/" : "", why);
}

static bool reserve(void *array, size_t *capacity, size_t count, size_t item_nbytes)
{
    void **p = array;
    if (count < *capacity)
        return true;
    size_t want = *capacity ? *capacity * 2 : 64;
    void *more = realloc(*p, want * item_nbytes);
    if (!more)
        return false;
    *p = more;
    *capacity = want;
    return true;
}

static struct zr_archive_level *add_level(struct tree *t, const char *path)
{
    if (!reserve(&t->levels, &t->level_capacity, t->public.level_count, sizeof *t->levels))
        return NULL;
    struct zr_archive_level *level = &t->levels[t->public.level_count++];
    *level = (struct zr_archive_level){.path = path};
    return level;
}

/* ---------------------------------------------------------------- names */

static bool is_unsafe(unsigned char c)
{
    return c <= ' ' || c == 0x7f || strchr("/<>:\"|?*\\%", c);
}

/* The name of a key's file or folder, as tensordict chooses it; out holds
 * 3 * nbytes + 7. */
static size_t encode_key(const char *key, size_t nbytes, char *out)
{
    static const char digits[] = "0123456789ABCDEF";
    bool dots = nbytes && nbytes <= 2 && key[0] == '.' && key[nbytes - 1] == '.';
    char *p = out;
    if (nbytes == 0)
        *p++ = '%';
    for (size_t i = 0; i < nbytes; i++) {
        unsigned char c = (unsigned char)key[i];
        if (dots || is_unsafe(c)) {
            *p++ = '%';
            *p++ = digits[c >> 4];
            *p++ = digits[c & 15];
        } else {
            *p++ = (char)c;
        }
    }
    *p = 0;
    return (size_t)(p - out);
}

/* Older writers used keys as they are; only those that stay in their folder. */
static bool is_legacy_name(const char *key, size_t n)
{
    if (n == 0 || memchr(key, '/', n) || memchr(key, '\\', n) || memchr(key, 0, n))
        return false;
    return !(n <= 2 && key[0] == '.' && key[n - 1] == '.');
}

/* "level/name" in memory of the tree, with room for `room` more bytes. */
static char *join(struct tree *t, const char *level, const char *name, size_t name_nbytes,
                  size_t room)
{
    size_t n = strlen(level);
    char *path = zri_block_alloc(&t->memory, n + 1 + name_nbytes + room + 1);
    if (!path)
        return NULL;
    char *p = path;
    if (n) {
        memcpy(p, level, n);
        p += n;
        *p++ = '/';
    }
    memcpy(p, name, name_nbytes);
    p[name_nbytes] = 0;
    return path;
}

/* The member "path" + suffix; path has room for it and is left as it was. */
static size_t find_with(const struct tree *t, char *path, const char *suffix)
{
    size_t n = strlen(path), more = strlen(suffix);
    memcpy(path + n, suffix, more + 1);
    size_t index = zri_archive_find(t->a, path, n + more);
    path[n] = 0;
    return index;
}

#define META "/meta.json"
#define PAYLOAD ".memmap"
#define SHAPES ".shape.memmap"
#define SUFFIX_ROOM sizeof SHAPES

/* The path below level of the key, whose member "path" + suffix exists; NULL with
 * *index SIZE_MAX when it does not, or when memory ran out (*index 0). */
static char *locate(struct tree *t, const char *level, const char *key, size_t key_nbytes,
                    const char *suffix, size_t *index)
{
    char few[256], *name = few;
    *index = 0;
    if (3 * key_nbytes + 7 > sizeof few)
        name = zri_block_alloc(&t->memory, 3 * key_nbytes + 7);
    if (!name)
        return NULL;
    size_t name_nbytes = encode_key(key, key_nbytes, name);
    char *path = join(t, level, name, name_nbytes, SUFFIX_ROOM);
    if (!path)
        return NULL;
    *index = find_with(t, path, suffix);
    if (*index != SIZE_MAX)
        return path;
    bool same = name_nbytes == key_nbytes && !memcmp(name, key, key_nbytes);
    if (same || !is_legacy_name(key, key_nbytes))
        return NULL;
    *index = 0;
    path = join(t, level, key, key_nbytes, SUFFIX_ROOM);
    if (path)
        *index = find_with(t, path, suffix);
    return path && *index != SIZE_MAX ? path : NULL;
}

/* ---------------------------------------------------------------- leaves */

static int leaf_failed(const struct tree *t, const char *level, const struct zri_meta_entry *e,
                       const char *why, struct zr_error *err)
{
    return zri_fail(err, ZR_E_FORMAT, "%s: leaf %s%s%.*s: %s", t->a->path, level, *level ? "/" : "",
                    (int)e->key_nbytes, e->key, why);
}

/* A member that is used once, as a file. */
static int use_member(struct tree *t, size_t index, struct zr_error *err)
{
    const struct zri_member *m = &t->a->members[index];
    if (m->is_special || m->is_folder)
        return zri_member_failed(t->a, index, ZR_E_FORMAT, "is a link or another special file",
                                 err);
    if (t->used[index])
        return zri_member_failed(t->a, index, ZR_E_FORMAT, "belongs to two leaves", err);
    t->used[index] = ZRI_USED;
    return ZR_OK;
}

static int place_leaf(const struct tree *t, struct zr_archive_leaf *leaf, struct zr_error *err)
{
    if (leaf->member == ZR_NO_MEMBER)
        return ZR_OK;
    const struct zri_member *m = &t->a->members[leaf->member];
    uint64_t off = 0;
    int rc = zri_member_payload(t->a, leaf->member, &off, err);
    if (!rc && m->method == ZRI_ZIP_STORED && t->a->file.bytes && off % leaf->itemsize == 0)
        leaf->data = (void *)(uintptr_t)(t->a->file.bytes + off);
    return rc;
}

static void place_task(void *ctx, size_t i)
{
    struct tree *t = ctx;
    size_t end = (i + 1) * PLACE_COUNT;
    for (size_t k = i * PLACE_COUNT; k < end && k < t->public.leaf_count; k++)
        if (place_leaf(t, &t->leaves[k], NULL))
            atomic_store(&t->misplaced, true);
}

/* Local headers lie far apart, and most of the time passes in waiting for memory: several
 * threads wait at a time.  Which leaf fails first is found out by one. */
static int place_leaves(struct tree *t, struct zr_error *err)
{
    size_t count = t->public.leaf_count;
    if (count > PLACE_COUNT)
        zri_parallel((count + PLACE_COUNT - 1) / PLACE_COUNT, zr_thread_count(), place_task, t);
    int rc = ZR_OK;
    if (count <= PLACE_COUNT || atomic_load(&t->misplaced))
        for (size_t i = 0; !rc && i < count; i++)
            rc = place_leaf(t, &t->leaves[i], err);
    return rc;
}

/* The sizes of the member against what the shape says. */
static const char *check_size(const struct tree *t, const struct zr_archive_leaf *leaf,
                              uint64_t shape_nbytes)
{
    const struct zri_member *m = &t->a->members[leaf->member];
    if (!leaf->is_nested)
        return m->nbytes == shape_nbytes ? NULL : "its file has another size than its shape says";
    if (leaf->ndim != 2)
        return "the shapes of a nested tensor are no matrix";
    if (leaf->shape_member == ZR_NO_MEMBER)
        return "the file with the shapes of a nested tensor is missing";
    if (t->a->members[leaf->shape_member].nbytes != leaf->shape[0] * leaf->shape[1] * 8)
        return "the file with its shapes has another size than meta.json says";
    return m->nbytes % leaf->itemsize ? "its file is no whole number of elements" : NULL;
}

/* Finds the files of the leaf. */
static int find_files(struct tree *t, const char *level, const struct zri_meta_entry *e,
                      struct zr_archive_leaf *leaf, struct zr_error *err)
{
    size_t index;
    uint64_t nbytes;
    if (!zri_shape_nbytes(e->ndim, e->shape, e->is_nested ? 8 : leaf->itemsize, &nbytes))
        return leaf_failed(t, level, e, "its shape is too large", err);
    char *path = locate(t, level, e->key, e->key_nbytes, PAYLOAD, &index);
    if (!path && index == SIZE_MAX && nbytes == 0 && !e->is_nested)
        return ZR_OK; /* tensordict makes no file for a leaf without elements */
    if (!path)
        return index == SIZE_MAX ? leaf_failed(t, level, e, "its file is missing", err)
                                 : no_memory(t, err);
    leaf->path = path;
    leaf->member = index;
    if (e->is_nested) {
        index = find_with(t, path, SHAPES);
        leaf->shape_member = index == SIZE_MAX ? ZR_NO_MEMBER : index;
    }
    leaf->nbytes = t->a->members[leaf->member].nbytes;
    const char *why = check_size(t, leaf, nbytes);
    return why ? leaf_failed(t, level, e, why, err) : ZR_OK;
}

static int add_leaf(struct tree *t, const char *level, const struct zri_meta_entry *e,
                    struct zr_error *err)
{
    const struct zri_dtype *dtype = zri_torch_dtype(e->dtype, e->dtype_nbytes);
    if (!dtype)
        return zri_fail(err, ZR_E_FORMAT, "%s: leaf %s%s%.*s: its dtype %.*s is not known",
                        t->a->path, level, *level ? "/" : "", (int)e->key_nbytes, e->key,
                        (int)e->dtype_nbytes, e->dtype);
    if (!reserve(&t->leaves, &t->leaf_capacity, t->public.leaf_count, sizeof *t->leaves))
        return no_memory(t, err);
    struct zr_archive_leaf *leaf = &t->leaves[t->public.leaf_count++];
    *leaf = (struct zr_archive_leaf){.key = e->key,
                                     .key_nbytes = e->key_nbytes,
                                     .torch_dtype = dtype->torch_name,
                                     .dtype = dtype->numpy_name,
                                     .itemsize = dtype->itemsize,
                                     .ndim = e->ndim,
                                     .shape = e->shape,
                                     .member = ZR_NO_MEMBER,
                                     .is_nested = e->is_nested,
                                     .shape_member = ZR_NO_MEMBER};
    int rc = find_files(t, level, e, leaf, err);
    if (!rc && leaf->member == ZR_NO_MEMBER) {
        leaf->path = join(t, level, e->key, e->key_nbytes, 0);
        return leaf->path ? ZR_OK : no_memory(t, err);
    }
    return rc ? rc : use_member(t, leaf->member, err);
}

/* ---------------------------------------------------------------- levels */

/* bzip2 may hold a million times its size, but no text is worth that much memory. */
static bool is_sound_text(const struct zri_member *m)
{
    static const uint64_t slack = 16 << 20, ratio = 4096;
    return m->nbytes <= UINT32_MAX && (m->nbytes <= slack || m->nbytes / ratio <= m->stored_nbytes);
}

/* A copy of its meta.json, checked, so that nobody changes it under the parser. */
static int read_meta(struct tree *t, struct zr_archive_level *level, size_t *meta_index,
                     struct zr_error *err)
{
    char *path = join(t, level->path, "meta.json", 9, 0);
    size_t index = path ? zri_archive_find(t->a, path, strlen(path)) : 0;
    if (!path)
        return no_memory(t, err);
    if (index == SIZE_MAX)
        return zri_fail(err, ZR_E_FORMAT, "%s: %s is missing", t->a->path, path);
    const struct zri_member *m = &t->a->members[index];
    if (!is_sound_text(m))
        return zri_member_failed(t->a, index, ZR_E_FORMAT, "is too large for a description", err);
    int rc = use_member(t, index, err);
    if (rc)
        return rc;
    char *text = zri_block_alloc(&t->memory, (size_t)m->nbytes + 1);
    if (!text)
        return no_memory(t, err);
    rc = zri_member_read(t->a, index, text, NULL, err);
    text[m->nbytes] = 0;
    level->meta = text;
    *meta_index = index;
    level->meta_nbytes = (size_t)m->nbytes;
    return rc;
}

/* false as well when memory runs out: ask t->ran_out. */
static bool has_child(struct tree *t, const char *path, const char *name)
{
    char *child = join(t, path, name, strlen(name), SUFFIX_ROOM);
    t->ran_out |= !child;
    return child && find_with(t, child, META) != SIZE_MAX;
}

static int kind_of(struct tree *t, const struct zr_archive_level *level, const struct zri_meta *m)
{
    if (m->has_stack_dim)
        return m->has_data ? ZR_LEVEL_VALUE : ZR_LEVEL_STACK;
    if (m->has_operation && has_child(t, level->path, "_source"))
        return ZR_LEVEL_VIEW;
    if (m->shape && m->is_plain)
        return ZR_LEVEL_TENSORDICT;
    bool is_entry = false;
    for (size_t i = 0; i < m->count; i++)
        is_entry |= m->entries[i].key_nbytes == 11 && !memcmp(m->entries[i].key, "_tensordict", 11);
    if (!is_entry && has_child(t, level->path, "_tensordict"))
        return ZR_LEVEL_TENSORCLASS;
    return m->shape ? ZR_LEVEL_TENSORDICT : ZR_LEVEL_VALUE;
}

/* The queue may move when a level is added, so levels are known by position. */
static int add_child(struct tree *t, char *path, struct zr_archive_entry *e, const char *key,
                     size_t key_nbytes, struct zr_error *err)
{
    *e = (struct zr_archive_entry){
        .key = key, .key_nbytes = key_nbytes, .index = t->public.level_count};
    return add_level(t, path) ? ZR_OK : no_memory(t, err);
}

static int take_tensordict(struct tree *t, size_t at, const struct zri_meta *m,
                           struct zr_archive_entry *entries, struct zr_error *err)
{
    const char *path = t->levels[at].path;
    int rc = ZR_OK;
    for (size_t i = 0; !rc && i < m->count; i++) {
        const struct zri_meta_entry *e = &m->entries[i];
        size_t index;
        if (e->dtype) {
            entries[i] = (struct zr_archive_entry){.key = e->key,
                                                   .key_nbytes = e->key_nbytes,
                                                   .is_leaf = true,
                                                   .index = t->public.leaf_count};
            rc = add_leaf(t, path, e, err);
            continue;
        }
        char *child = locate(t, path, e->key, e->key_nbytes, META, &index);
        if (child)
            rc = add_child(t, child, &entries[i], e->key, e->key_nbytes, err);
        else
            rc = index == SIZE_MAX ? leaf_failed(t, path, e, "its meta.json is missing", err)
                                   : no_memory(t, err);
    }
    t->levels[at].entry_count = m->count;
    return rc;
}

/* Levels of known names: the members of a stack, or the one inside. */
static int take_named(struct tree *t, size_t at, const char *only, struct zr_error *err)
{
    const char *level = t->levels[at].path;
    size_t capacity = 0, count = 0;
    struct zr_archive_entry *entries = NULL;
    int rc = ZR_OK;
    for (;;) {
        char name[24];
        int n = snprintf(name, sizeof name, "%s", only ? only : "");
        if (!only)
            n = snprintf(name, sizeof name, "%zu", count);
        char *path = join(t, level, name, (size_t)n, SUFFIX_ROOM);
        if (!path || !reserve(&entries, &capacity, count, sizeof *entries)) {
            rc = no_memory(t, err);
            break;
        }
        if (find_with(t, path, META) == SIZE_MAX || (only && count))
            break;
        const char *key = path + strlen(path) - (size_t)n;
        rc = add_child(t, path, &entries[count], key, (size_t)n, err);
        if (rc)
            break;
        count++;
    }
    struct zr_archive_entry *kept = zri_block_alloc(&t->memory, (count + 1) * sizeof *kept);
    if (kept && count)
        memcpy(kept, entries, count * sizeof *kept);
    free(entries);
    t->levels[at].entries = kept;
    t->levels[at].entry_count = count;
    return rc ? rc : kept ? ZR_OK : no_memory(t, err);
}

static int take_entries(struct tree *t, size_t at, const struct zri_meta *m, struct zr_error *err)
{
    switch (t->levels[at].kind) {
    case ZR_LEVEL_TENSORDICT: {
        struct zr_archive_entry *entries =
            zri_block_alloc(&t->memory, (m->count + 1) * sizeof *entries);
        t->levels[at].entries = entries;
        return entries ? take_tensordict(t, at, m, entries, err) : no_memory(t, err);
    }
    case ZR_LEVEL_STACK:
        return take_named(t, at, NULL, err);
    case ZR_LEVEL_TENSORCLASS:
        return take_named(t, at, "_tensordict", err);
    case ZR_LEVEL_VIEW:
        return take_named(t, at, "_source", err);
    default:
        return ZR_OK;
    }
}

static int take_level(struct tree *t, size_t at, struct zr_error *err)
{
    struct zri_meta m;
    size_t index = 0;
    int rc = read_meta(t, &t->levels[at], &index, err);
    if (rc)
        return rc;
    struct zr_archive_level *level = &t->levels[at];
    const char *why = zri_meta_parse(&m, level->meta, level->meta_nbytes, &t->memory);
    if (!why) {
        level->kind = kind_of(t, level, &m);
        level->is_plain = m.is_plain;
        if (level->kind == ZR_LEVEL_TENSORDICT) {
            level->ndim = m.ndim;
            level->shape = m.shape;
        } else if (level->kind == ZR_LEVEL_STACK) {
            t->used[index] = ZRI_USED_BY_STACK;
            t->has_stacks = true;
        }
        rc = t->ran_out ? no_memory(t, err) : take_entries(t, at, &m, err);
    } else {
        rc = level_failed(t, level->path, why, err);
    }
    free(m.entries);
    return rc;
}

static int take_levels(struct tree *t, const char *path, struct zr_error *err)
{
    if (!add_level(t, path))
        return no_memory(t, err);
    int rc = ZR_OK;
    for (size_t at = 0; !rc && at < t->public.level_count; at++)
        rc = take_level(t, at, err);
    return rc;
}

/* ---------------------------------------------------------------- subpaths */

static int not_found(const struct tree *t, const char *path, const char *key, struct zr_error *err)
{
    if (!*path)
        return zri_fail(err, ZR_E_NOT_FOUND, "%s: there is no '%s' at its root", t->a->path, key);
    return zri_fail(err, ZR_E_NOT_FOUND, "%s: there is no '%s' below '%s'", t->a->path, key, path);
}

/* The one leaf of a level's meta.json. */
static int take_one_leaf(struct tree *t, const char *path, const char *key, struct zr_error *err)
{
    struct zr_archive_level level = {.path = path};
    struct zri_meta m;
    size_t n = strlen(key), found = SIZE_MAX, index;
    int rc = read_meta(t, &level, &index, err);
    if (rc)
        return rc;
    const char *why = zri_meta_parse(&m, level.meta, level.meta_nbytes, &t->memory);
    for (size_t i = 0; !why && i < m.count; i++)
        if (m.entries[i].dtype && m.entries[i].key_nbytes == n && !memcmp(m.entries[i].key, key, n))
            found = i;
    if (why)
        rc = level_failed(t, path, why, err);
    else
        rc = found == SIZE_MAX ? not_found(t, path, key, err)
                               : add_leaf(t, path, &m.entries[found], err);
    free(m.entries);
    return rc;
}

/* One step down: to a level, through a tensorclass, or to a leaf at the end. */
static int step(struct tree *t, const char **path, const char *key, bool is_last, bool *is_leaf,
                struct zr_error *err)
{
    size_t index, n = strlen(key);
    char *next = locate(t, *path, key, n, META, &index);
    if (!next && index == SIZE_MAX && is_last) {
        *is_leaf = locate(t, *path, key, n, PAYLOAD, &index) != NULL;
        if (*is_leaf)
            return ZR_OK;
    }
    if (!next && index == SIZE_MAX && has_child(t, *path, "_tensordict")) {
        char *inside = join(t, *path, "_tensordict", 11, SUFFIX_ROOM);
        if (!inside)
            return no_memory(t, err);
        *path = inside;
        return step(t, path, key, is_last, is_leaf, err);
    }
    if (t->ran_out)
        return no_memory(t, err);
    if (!next && index == SIZE_MAX && is_last) {
        *is_leaf = true; /* perhaps one without elements */
        return ZR_OK;
    }
    if (!next)
        return index == SIZE_MAX ? not_found(t, *path, key, err) : no_memory(t, err);
    *path = next;
    return ZR_OK;
}

static int take_subpath(struct tree *t, const char *const *keys, size_t key_count,
                        struct zr_error *err)
{
    const char *path = "";
    bool is_leaf = false;
    int rc = ZR_OK;
    for (size_t i = 0; !rc && i < key_count; i++)
        rc = step(t, &path, keys[i], i + 1 == key_count, &is_leaf, err);
    if (rc)
        return rc;
    return is_leaf ? take_one_leaf(t, path, keys[key_count - 1], err) : take_levels(t, path, err);
}

int zr_archive_tree(const struct zr_archive *a, const char *const *keys, size_t key_count,
                    const struct zr_archive_tree **tree, struct zr_error *err)
{
    *tree = NULL;
    struct tree *t = calloc(1, sizeof *t);
    if (t)
        t->used = calloc(a->count + 1, 1);
    if (!t || !t->used) {
        free(t);
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", a->path);
    }
    t->a = a;
    int rc = take_subpath(t, keys, key_count, err);
    if (!rc)
        rc = place_leaves(t, err);
    if (!rc && t->has_stacks)
        rc = zri_archive_check_stacks(a, t->used, err);
    if (!rc && !zri_file_trusted(&a->file))
        rc = zri_fail(err, ZR_E_TRUNCATED, "%s: the file was cut short or failed while it was read",
                      a->path);
    free(t->used);
    t->used = NULL;
    t->public.levels = t->levels;
    t->public.leaves = t->leaves;
    if (rc)
        zr_archive_tree_free(&t->public);
    else
        *tree = &t->public;
    return rc;
}

void zr_archive_tree_free(const struct zr_archive_tree *tree)
{
    struct tree *t = (struct tree *)(uintptr_t)tree;
    if (!t)
        return;
    zri_block_free(t->memory);
    free(t->levels);
    free(t->leaves);
    free(t);
}
