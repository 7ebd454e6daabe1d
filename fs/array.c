/* SPDX-License-Identifier: MIT
 *
 * Arrays made of records.  A READ decodes the rows that lie in it straight into the
 * reply; the rows that its ends cut go through the cache, since the READ beside it
 * wants the rest of them.  So each row is decoded once however the kernel slices the
 * file, and nothing beyond what it asked for.
 *
 * A selection of moderate size that has to be decompressed is one gather, which the engine
 * spreads over its threads, and is kept until all of it has been delivered.  Plain copies
 * are made for each READ, straight to where it is answered from.
 */
#include "array.h"

#include "ops.h"
#include "selection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { GATHER_IDS = 4096, WHOLE_MAX_NBYTES = 8 << 20 };
/* Parts in the cache: the whole file, or a row. */
enum { WHOLE_PART = 0, FIRST_ROW_PART = 1 };

struct array {
    const struct zr_info *info;
    struct zr_reader *reader;
    struct selection *selection; /* NULL: all records */
    uint64_t count;
    uint64_t row_nbytes, nbytes;
    size_t header_nbytes;
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
};

/* ---------------------------------------------------------------- size and shape */

/* What the data of count rows takes; false beyond what a file may hold. */
static bool data_nbytes(const struct zr_info *info, uint64_t count, uint64_t *nbytes)
{
    return !__builtin_mul_overflow(info->row_nbytes, count, nbytes) &&
           *nbytes <= INT64_MAX - ZR_NPY_MAX_HEADER_NBYTES;
}

bool array_is_possible(const struct source *source)
{
    uint64_t nbytes;
    return source->info.geometry == ZR_DENSE &&
           data_nbytes(&source->info, source->info.length, &nbytes);
}

static const char SUFFIX[] = ".npy";
enum { SUFFIX_NBYTES = sizeof SUFFIX - 1 };

/* The selection behind a file name, to be freed. */
static int parse_name(const struct source *source, const char *name, struct selection **selection)
{
    size_t nbytes = strlen(name);
    if (nbytes <= SUFFIX_NBYTES || strcmp(name + nbytes - SUFFIX_NBYTES, SUFFIX) != 0)
        return ENOENT;
    int failure = selection_parse(name, nbytes - SUFFIX_NBYTES, source->info.length, selection);
    return failure == ENOMEM ? ENOMEM : failure ? ENOENT : 0;
}

int array_parse_name(const struct source *source, const char *name, uint64_t *count)
{
    struct selection *selection;
    uint64_t nbytes;
    int failure = parse_name(source, name, &selection);
    if (failure)
        return failure;
    *count = selection->count;
    free(selection);
    return data_nbytes(&source->info, *count, &nbytes) ? 0 : EFBIG;
}

static void init(struct array *a, const struct node *node)
{
    const struct zr_info *info = &node->source->info;
    uint64_t shape[ZR_MAX_NDIM];
    a->info = info;
    a->reader = node->source->reader;
    a->selection = NULL;
    a->count = node->minted ? node->id : info->length;
    a->row_nbytes = info->row_nbytes;
    shape[0] = a->count;
    memcpy(shape + 1, info->item_shape, info->ndim * sizeof *shape);
    a->header_nbytes = zr_npy_header(info->dtype, info->ndim + 1, shape, a->header);
    (void)data_nbytes(info, a->count, &a->nbytes); /* looked at when the name was */
    a->nbytes += a->header_nbytes;
}

int array_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    struct array a;
    init(&a, node);
    node_file_attr(fs, node, a.nbytes, st);
    return 0;
}

/* ---------------------------------------------------------------- rows */

static int fill_selection(struct array *a, const struct node *node, struct zr_error *err)
{
    if (!node->minted || parse_name(node->source, node->minted->name, &a->selection) == 0)
        return ZR_OK;
    return cache_no_memory(err);
}

static void row_ids(const struct array *a, uint64_t row, size_t count, uint64_t *ids)
{
    if (a->selection) {
        selection_ids(a->selection, row, count, ids);
        return;
    }
    for (size_t i = 0; i < count; i++)
        ids[i] = row + i;
}

static int gather(struct fs *fs, const struct array *a, uint64_t row, uint64_t count, uint8_t *to,
                  struct zr_error *err)
{
    uint64_t ids[GATHER_IDS];
    int code = ZR_OK;
    while (count && code == ZR_OK) {
        size_t n = count < GATHER_IDS ? (size_t)count : GATHER_IDS;
        row_ids(a, row, n, ids);
        code = zr_gather_dense(a->reader, ids, n, to, n * a->row_nbytes, err);
        if (code == ZR_OK) {
            counters_add(fs->counters, EVENT_DECODES, n);
            counters_add(fs->counters, EVENT_DECODED_BYTES, n * a->row_nbytes);
        }
        row += n;
        count -= n;
        to += n * a->row_nbytes;
    }
    return code;
}

/* The whole file, or one row of it. */
int array_decode(struct fs *fs, const struct node *node, uint64_t part, struct cache_bytes *out,
                 struct zr_error *err)
{
    struct array a;
    init(&a, node);
    int code = fill_selection(&a, node, err);
    if (code != ZR_OK)
        return code;
    bool is_whole = part == WHOLE_PART;
    size_t lead = is_whole ? a.header_nbytes : 0;
    out->nbytes = is_whole ? a.nbytes : a.row_nbytes;
    out->block = zr_buffer_alloc(out->nbytes);
    out->bytes = out->block;
    if (!out->block)
        code = cache_no_memory(err);
    if (code == ZR_OK) {
        memcpy(out->block, a.header, lead);
        code = gather(fs, &a, is_whole ? 0 : part - FIRST_ROW_PART, is_whole ? a.count : 1,
                      (uint8_t *)out->block + lead, err);
    }
    if (code != ZR_OK)
        zr_buffer_free(out->block);
    free(a.selection);
    return code;
}

/* ---------------------------------------------------------------- reads */

static int get_part(struct fs *fs, const struct node *node, uint64_t part,
                    struct cache_entry **entry, struct zr_error *err)
{
    enum cache_outcome outcome;
    const struct cache_key key = {.ino = node->ino, .part = part};
    int code = cache_get(fs->cache, key, node, entry, &outcome, err);
    if (code == ZR_OK && outcome != CACHE_DECODED)
        counters_add(fs->counters, outcome == CACHE_HIT ? EVENT_CACHE_HITS : EVENT_CACHE_WAITS, 1);
    return code;
}

static int read_whole(fuse_req_t req, struct fs *fs, const struct node *node, size_t size,
                      off_t off, struct zr_error *err)
{
    struct cache_entry *entry;
    int code = get_part(fs, node, WHOLE_PART, &entry, err);
    if (code != ZR_OK)
        return code;
    const struct cache_bytes *bytes = cache_entry_bytes(entry);
    cache_put(fs->cache, entry, node_reply(req, bytes->bytes, bytes->nbytes, size, off));
    return ZR_OK;
}

/* Part of one row, by the cache. */
static int copy_cut_row(struct fs *fs, const struct node *node, uint64_t row, uint64_t row_off,
                        size_t nbytes, uint8_t *to, struct zr_error *err)
{
    struct cache_entry *entry;
    int code = get_part(fs, node, FIRST_ROW_PART + row, &entry, err);
    if (code != ZR_OK)
        return code;
    memcpy(to, (const uint8_t *)cache_entry_bytes(entry)->bytes + row_off, nbytes);
    cache_put(fs->cache, entry, nbytes);
    return ZR_OK;
}

/* nbytes of the rows from byte at of them on. */
static int copy_rows(struct fs *fs, const struct node *node, const struct array *a, uint64_t at,
                     size_t nbytes, uint8_t *to, struct zr_error *err)
{
    int code = ZR_OK;
    while (nbytes && code == ZR_OK) {
        uint64_t row = at / a->row_nbytes, row_off = at % a->row_nbytes;
        uint64_t whole_count = row_off ? 0 : nbytes / a->row_nbytes;
        uint64_t left = a->row_nbytes - row_off;
        size_t done = whole_count ? (size_t)(whole_count * a->row_nbytes)
                                  : (size_t)(left < nbytes ? left : nbytes);
        code = whole_count ? gather(fs, a, row, whole_count, to, err)
                           : copy_cut_row(fs, node, row, row_off, done, to, err);
        at += done;
        to += done;
        nbytes -= done;
    }
    return code;
}

static int copy_slice(struct fs *fs, const struct node *node, struct array *a, uint64_t off,
                      size_t nbytes, uint8_t *to, struct zr_error *err)
{
    size_t lead = off < a->header_nbytes ? a->header_nbytes - (size_t)off : 0;
    if (lead > nbytes)
        lead = nbytes;
    memcpy(to, a->header + (lead ? off : 0), lead);
    if (lead == nbytes)
        return ZR_OK;
    int code = fill_selection(a, node, err);
    if (code == ZR_OK)
        code = copy_rows(fs, node, a, off + lead - a->header_nbytes, nbytes - lead, to + lead, err);
    free(a->selection);
    return code;
}

static int read_slice(fuse_req_t req, struct fs *fs, const struct node *node, struct array *a,
                      size_t size, off_t off, struct zr_error *err)
{
    uint64_t left = (uint64_t)off < a->nbytes ? a->nbytes - (uint64_t)off : 0;
    size_t nbytes = left < size ? (size_t)left : size;
    void *block;
    uint8_t *slice = node_reply_room(nbytes, &block);
    if (!slice)
        return cache_no_memory(err);
    int code = copy_slice(fs, node, a, (uint64_t)off, nbytes, slice, err);
    if (code == ZR_OK) {
        counters_add(fs->counters, EVENT_READ_BYTES, nbytes);
        fuse_reply_buf(req, (const char *)slice, nbytes);
    }
    zr_buffer_free(block);
    return code;
}

/* Worth to be made as a whole, and small enough to be kept so between two READs. */
static bool is_whole(const struct fs *fs, const struct node *node, const struct array *a)
{
    return node->minted && a->info->codec != ZR_RAW && a->nbytes <= WHOLE_MAX_NBYTES &&
           a->nbytes <= fs->options->cache_nbytes / 2;
}

int array_read(fuse_req_t req, struct fs *fs, const struct node *node, size_t size, off_t off)
{
    struct zr_error err;
    struct array a;
    init(&a, node);
    int code = is_whole(fs, node, &a) ? read_whole(req, fs, node, size, off, &err)
                                      : read_slice(req, fs, node, &a, size, off, &err);
    return code == ZR_OK ? 0 : records_fail(fs, node->source, 0, &err);
}
