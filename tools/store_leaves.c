/* SPDX-License-Identifier: MIT
 *
 * A folder of stores as the leaves of an archive: finds them, writes a meta.json
 * for each folder, and gives the engine's writer their rows as it asks for them.
 */
#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "archives.h"

#define DEPTH_MAX 64

/* NumPy's names of the dtypes that an archive can hold. */
static const char *const dtypes[][2] = {
    {"<f4", "float32"},   {"<f8", "float64"},     {"<f2", "float16"}, {"<i8", "int64"},
    {"<i4", "int32"},     {"<i2", "int16"},       {"|i1", "int8"},    {"|u1", "uint8"},
    {"|b1", "bool"},      {"<u2", "uint16"},      {"<u4", "uint32"},  {"<u8", "uint64"},
    {"<c8", "complex64"}, {"<c16", "complex128"},
};

struct leaf {
    struct zr_reader *reader;
    struct zr_info info;
};

struct gathering {
    const char *dir;
    struct zr_archive_source *sources;
    size_t count, capacity;
    uint64_t length; /* of all stores so far that share it; UINT64_MAX: none yet */
    bool shared;
    struct zr_error *err;
};

static int out_of_memory(struct gathering *g)
{
    g->err->code = ZR_E_NOMEM;
    snprintf(g->err->message, sizeof g->err->message, "%s: out of memory", g->dir);
    return ZR_E_NOMEM;
}

static int refuse(struct gathering *g, const char *path, const char *why)
{
    g->err->code = ZR_E_INVALID;
    snprintf(g->err->message, sizeof g->err->message, "%.900s: %s", path, why);
    return ZR_E_INVALID;
}

/* ---------------------------------------------------------------- rows */

#define ROWS 256

/* The writer cuts where it likes; rows that are cut are read whole. */
static int fill(void *ctx, uint64_t off, void *buf, size_t nbytes, struct zr_error *err)
{
    const struct leaf *leaf = ctx;
    uint64_t row = leaf->info.row_nbytes, ids[ROWS];
    char *out = buf, *whole = zr_buffer_alloc((size_t)row);
    int code = whole ? ZR_OK : ZR_E_NOMEM;

    while (nbytes && code == ZR_OK) {
        uint64_t id = off / row, head = off % row;
        size_t count = nbytes / row < ROWS ? (size_t)(nbytes / row) : ROWS,
               n = (size_t)(count * row);
        if (head || !count) {
            count = 1;
            n = row - head < nbytes ? (size_t)(row - head) : nbytes;
        }
        for (size_t i = 0; i < count; i++)
            ids[i] = id + i;
        bool cut = n < row;
        code =
            zr_gather_dense(leaf->reader, ids, count, cut ? whole : out, count * (size_t)row, err);
        if (code == ZR_OK && cut)
            memcpy(out, whole + head, n);
        out += n;
        off += n;
        nbytes -= n;
    }
    zr_buffer_free(whole);
    return code;
}

static struct zr_archive_source *add_source(struct gathering *g)
{
    if (g->count == g->capacity) {
        size_t capacity = g->capacity ? g->capacity * 2 : 16;
        struct zr_archive_source *more = realloc(g->sources, capacity * sizeof *more);
        if (!more)
            return NULL;
        g->sources = more;
        g->capacity = capacity;
    }
    g->sources[g->count] = (struct zr_archive_source){0};
    return &g->sources[g->count++];
}

static char *join(const char *folder, const char *name, const char *suffix)
{
    char *path;

    return asprintf(&path, "%s%s%s%s", folder, *folder ? "/" : "", name, suffix) < 0 ? NULL : path;
}

static const char *torch_dtype(const char *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i][0], dtype) == 0)
            return dtypes[i][1];
    return NULL;
}

/* ---------------------------------------------------------------- meta.json */

static json_t *leaf_meta(const struct zr_info *info)
{
    char name[32];
    json_t *shape = json_array();

    json_array_append_new(shape, json_integer((json_int_t)info->length));
    for (uint32_t i = 0; i < info->ndim; i++)
        json_array_append_new(shape, json_integer((json_int_t)info->item_shape[i]));
    snprintf(name, sizeof name, "torch.%s", torch_dtype(info->dtype));
    return json_pack("{s:s,s:o,s:s,s:b}", "device", "cpu", "shape", shape, "dtype", name,
                     "is_nested", 0);
}

static void finish_meta(json_t *meta, const struct gathering *g)
{
    json_t *shape = json_array();

    if (g->shared && g->length != UINT64_MAX)
        json_array_append_new(shape, json_integer((json_int_t)g->length));
    json_object_set_new(meta, "shape", shape);
    json_object_set_new(meta, "device", json_string("cpu"));
    json_object_set_new(meta, "_type", json_string("<class 'tensordict._td.TensorDict'>"));
    json_object_set_new(meta, "_format_version", json_integer(1));
    json_object_set_new(meta, "_class", json_string("tensordict:TensorDict"));
}

/* ---------------------------------------------------------------- folders */

static int add_store(struct gathering *g, const char *path, const char *name, const char *folder,
                     json_t *meta)
{
    struct leaf *leaf = calloc(1, sizeof *leaf);
    struct zr_archive_source *s = leaf ? add_source(g) : NULL;

    if (!s) {
        free(leaf);
        return out_of_memory(g);
    }
    s->fill_ctx = leaf;
    s->name = join(folder, name, ".memmap");
    if (!s->name)
        return out_of_memory(g);
    int code = zr_reader_open(&leaf->reader, path, NULL, g->err);
    if (code != ZR_OK)
        return code;
    zr_reader_info(leaf->reader, &leaf->info);
    if (leaf->info.geometry != ZR_DENSE)
        return refuse(g, path, "is Ragged; a leaf of an archive has one shape");
    if (!torch_dtype(leaf->info.dtype))
        return refuse(g, path, "has a dtype that an archive cannot hold");
    s->nbytes = leaf->info.length * leaf->info.row_nbytes;
    s->fill = fill;
    s->is_payload = true;
    g->shared = g->shared && (g->length == UINT64_MAX || g->length == leaf->info.length);
    g->length = leaf->info.length;
    if (json_object_set_new(meta, name, leaf_meta(&leaf->info)))
        return refuse(g, path, "has a name that is not UTF-8");
    return ZR_OK;
}

static int visible(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static bool is_folder(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int add_folder(struct gathering *g, const char *path, const char *folder, int depth);

static int add_inner(struct gathering *g, const char *path, const char *folder, const char *name,
                     json_t *meta, int depth)
{
    char *inner = join(folder, name, "");
    int code = inner ? add_folder(g, path, inner, depth + 1) : out_of_memory(g);

    free(inner);
    json_object_set_new(meta, name, json_pack("{s:s}", "type", "TensorDict"));
    return code;
}

/* Stores first, then folders: the order of an archive. */
static int add_names(struct gathering *g, struct dirent **names, int count, const char *path,
                     const char *folder, json_t *meta, int depth)
{
    int code = ZR_OK;

    for (int stores = 1; stores >= 0; stores--)
        for (int i = 0; i < count && code == ZR_OK; i++) {
            char *inner = join(path, names[i]->d_name, "");
            if (!inner)
                return out_of_memory(g);
            bool store = is_store(inner);
            if (store && stores)
                code = add_store(g, inner, names[i]->d_name, folder, meta);
            else if (!store && !stores && is_folder(inner) && folder_has_stores(inner))
                code = add_inner(g, inner, folder, names[i]->d_name, meta, depth);
            free(inner);
        }
    return code;
}

static int add_folder(struct gathering *g, const char *path, const char *folder, int depth)
{
    struct dirent **names;
    size_t at = g->count;
    int count = depth > DEPTH_MAX ? -1 : scandir(path, &names, visible, alphasort);

    if (count < 0)
        return refuse(g, path, "cannot be listed");
    json_t *meta = json_object();
    struct zr_archive_source *s = add_source(g);
    int code = s ? add_names(g, names, count, path, folder, meta, depth) : out_of_memory(g);
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
    finish_meta(meta, g);
    if (s) { /* the array may have moved */
        char *text = json_dumps(meta, 0);
        g->sources[at].name = join(folder, "meta.json", "");
        g->sources[at].data = text;
        g->sources[at].nbytes = text ? strlen(text) : 0;
        if (!g->sources[at].name || !text)
            code = out_of_memory(g);
    }
    json_decref(meta);
    return code;
}

bool folder_has_stores(const char *dir)
{
    struct dirent **names;
    bool found = false;
    int count = scandir(dir, &names, visible, NULL);

    for (int i = 0; i < count; i++) {
        char *inner = found ? NULL : join(dir, names[i]->d_name, "");
        found =
            found || (inner && (is_store(inner) || (is_folder(inner) && folder_has_stores(inner))));
        free(inner);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    return found;
}

static void release(struct gathering *g)
{
    for (size_t i = 0; i < g->count; i++) {
        struct leaf *leaf = g->sources[i].fill_ctx;
        if (leaf)
            zr_reader_close(leaf->reader);
        free(leaf);
        free((void *)(uintptr_t)g->sources[i].data);
        free((void *)(uintptr_t)g->sources[i].name);
    }
    free(g->sources);
}

int pack_stores(const char *dir, const char *path, const struct zr_archive_save_options *options,
                struct zr_error *err)
{
    struct gathering g = {.dir = dir, .length = UINT64_MAX, .shared = true, .err = err};
    int code = add_folder(&g, dir, "", 0);

    if (code == ZR_OK)
        code = zr_archive_save(path, g.sources, g.count, options, err);
    release(&g);
    return code;
}
