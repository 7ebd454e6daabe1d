/* SPDX-License-Identifier: MIT
 *
 * Hostile stores, opened from memory, and every way to read one.  Whatever the
 * bytes are: no crash, no leak, no allocation that the bytes do not justify, and
 * what succeeds is consistent.
 */
#include <stdlib.h>

#include "internal.h"
#include "store_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t nbytes);

#define RECORD_MAX ((uint64_t)1 << 20) /* larger ones are planned, not decoded */
#define IDS_MAX 8

struct cursor {
    const uint8_t *p;
    size_t left;
};

struct store {
    struct zri_image meta, data, dict, side;
    bool has_data, has_dict, has_side;
    struct zr_reader_options options;
};

static void require(bool holds)
{
    if (!holds)
        abort();
}

static size_t take_length(struct cursor *c)
{
    size_t n = c->p[0] | (size_t)c->p[1] << 8;
    c->p += 2;
    return n;
}

/* A block of exactly that size, so that a read past it is seen. */
static struct zri_image take_image(struct cursor *c, size_t nbytes, size_t padded)
{
    size_t n = nbytes < c->left ? nbytes : c->left, total = n < padded ? padded : n;
    uint8_t *bytes = calloc(total ? total : 1, 1);
    require(bytes);
    memcpy(bytes, c->p, n);
    c->p += n;
    c->left -= n;
    return (struct zri_image){bytes, total};
}

static struct zri_image join(struct zri_image a, struct zri_image b)
{
    uint8_t *bytes = malloc(a.nbytes + b.nbytes + 1);
    require(bytes);
    memcpy(bytes, a.bytes, a.nbytes);
    memcpy(bytes + a.nbytes, b.bytes, b.nbytes);
    free((void *)(uintptr_t)a.bytes);
    free((void *)(uintptr_t)b.bytes);
    return (struct zri_image){bytes, a.nbytes + b.nbytes};
}

static void unpack(struct store *s, const uint8_t *input, size_t nbytes)
{
    uint8_t flags = input[0];
    struct cursor c = {input + 1, nbytes - STORE_HEAD_NBYTES};
    size_t page = take_length(&c), table = take_length(&c), dict = take_length(&c),
           side = take_length(&c);
    struct zri_image first = take_image(&c, page, flags & STORE_PAD_PAGE ? ZRI_PAGE_NBYTES : 0);
    s->meta = join(first, take_image(&c, table, 0));
    s->dict = take_image(&c, dict, 0);
    s->side = take_image(&c, side, 0);
    s->data = take_image(&c, c.left, 0);
    s->has_data = flags & STORE_HAS_DATA;
    s->has_dict = flags & STORE_HAS_DICT;
    s->has_side = flags & STORE_HAS_SIDE;
    s->options.checksums = flags & STORE_CHECKSUMS;
    s->options.mapped_nbytes = flags & STORE_UNMAPPED ? 1 : 0;
}

static void release(struct store *s)
{
    free((void *)(uintptr_t)s->meta.bytes);
    free((void *)(uintptr_t)s->data.bytes);
    free((void *)(uintptr_t)s->dict.bytes);
    free((void *)(uintptr_t)s->side.bytes);
}

static int open_store(const struct store *s, bool with_side, struct zr_reader **r)
{
    struct zr_error err = {0};
    int rc = zri_reader_open_images(r, &s->meta, s->has_data ? &s->data : NULL,
                                    s->has_dict ? &s->dict : NULL, with_side ? &s->side : NULL,
                                    &s->options, &err);
    require(rc ? !*r && err.code == rc && err.message[0] : *r != NULL);
    return rc;
}

/* Random bytes never hash right: make the header match, so that rows are read. */
static void sign_side(struct store *s)
{
    struct zr_reader *r;
    if (s->side.nbytes < ZRI_SIDE_HEADER_NBYTES || open_store(s, false, &r))
        return;
    struct zri_sidecar side = {.length = r->header.length,
                               .tail_off = r->header.tail_off,
                               .identity = r->identity,
                               .dict_sum = r->dict ? zri_checksum(r->dict, r->dict_nbytes) : 0,
                               .ragged = r->schema.geometry == ZR_RAGGED};
    zri_sidecar_encode(&side, (uint8_t *)(uintptr_t)s->side.bytes);
    zr_reader_close(r);
}

static size_t choose_ids(const struct zr_reader *r, uint64_t *ids)
{
    uint64_t n = r->header.length;
    const uint64_t wanted[IDS_MAX] = {0, n - 1, n / 2, n / 3, 1, 0, 2, n - 1};
    size_t count = 0;
    struct zr_location loc;
    for (size_t i = 0; i < IDS_MAX; i++)
        if (n && wanted[i] < n && zr_reader_locate(r, wanted[i], &loc, NULL) == ZR_OK &&
            loc.logic_nbytes <= RECORD_MAX)
            ids[count++] = wanted[i];
    return count;
}

/* zstd has two decoders, and takes the one when its context met the dictionary last: what the
 * one finds damaged the other may not. */
static bool decodes_alike(const struct zr_reader *r)
{
    return !r->dict;
}

/* Into a block of exactly the size that was told: the same, or damage. */
static void read_npy_into(struct zr_reader *r, uint64_t id, uint64_t told, const void *npy,
                          uint64_t nbytes)
{
    struct zr_error err = {0};
    uint8_t *out = malloc(told);
    require(out != NULL);
    int rc = zr_record_npy_into(r, id, out, told, &err);
    if (rc)
        require(err.code == rc && err.message[0]);
    if (decodes_alike(r)) {
        require(!rc == (npy && told == nbytes));
        require(rc || !memcmp(out, npy, nbytes));
    }
    free(out);
}

static void read_npy(struct zr_reader *r, uint64_t id)
{
    void *block;
    const void *npy;
    uint64_t known = 0, nbytes;
    struct zr_npy parsed;
    struct zr_location loc;
    if (zr_reader_locate(r, id, &loc, NULL) || loc.logic_nbytes > RECORD_MAX)
        return;
    int rc = zr_record_npy_nbytes(r, id, &known, NULL);
    int failed = zr_record_npy(r, id, &block, &npy, &nbytes, NULL);
    if (!rc)
        read_npy_into(r, id, known, failed ? NULL : npy, failed ? 0 : nbytes);
    if (failed)
        return;
    /* A sidecar's rows carry no checksum of their own: its word may be wrong. */
    require(r->has_sidecar || (!rc && known == nbytes));
    require(zr_npy_parse(npy, nbytes, nbytes, "npy", &parsed, NULL) == ZR_OK);
    require(parsed.data_off + parsed.data_nbytes == nbytes);
    zr_buffer_free(block);
}

static void read_dense(struct zr_reader *r, const uint64_t *ids, size_t count)
{
    uint64_t row = r->schema.row_nbytes;
    if (row > RECORD_MAX)
        return;
    uint8_t *out = malloc(count * row + 1);
    struct zr_error err = {0};
    require(out && zr_gather_dense(r, ids, count, out, count * row - 1, &err) ==
                       (count ? ZR_E_BUFFER : ZR_OK));
    int rc = zr_gather_dense(r, ids, count, out, count * row, &err);
    require(!rc || (err.code == rc && err.message[0]));
    free(out);
}

static void read_ragged(struct zr_reader *r, const uint64_t *ids, size_t count)
{
    uint64_t offsets[IDS_MAX + 1];
    struct zr_location loc;
    require(zr_gather_ragged_plan(r, ids, count, offsets, NULL) == ZR_OK);
    uint8_t *out = aligned_alloc(64, (offsets[count] + 64) & ~(uint64_t)63);
    require(out && offsets[count] <= IDS_MAX * (RECORD_MAX + 16));
    if (zr_gather_ragged(r, ids, count, out, offsets, NULL) == ZR_OK)
        for (size_t i = 0; i < count; i++) {
            struct zr_record_view v;
            require(zr_reader_locate(r, ids[i], &loc, NULL) == ZR_OK);
            zr_record_split(out + offsets[i], loc.logic_nbytes, &v);
            require(v.ndim <= ZR_MAX_NDIM && v.data_nbytes <= loc.logic_nbytes);
            require((const uint8_t *)v.data + v.data_nbytes == out + offsets[i] + loc.logic_nbytes);
        }
    free(out);
}

static void read_packed(struct zr_reader *r, const uint64_t *ids, size_t count)
{
    struct zr_part p;
    if (zr_gather_packed(r, ids, count, &p, NULL))
        return;
    require(p.nbytes == p.offsets[count] && p.nbytes <= IDS_MAX * RECORD_MAX);
    require(p.shape_offsets[count] <= IDS_MAX * ZR_MAX_NDIM);
    for (size_t i = 0; i < count; i++) {
        uint64_t nbytes;
        uint32_t ndim = (uint32_t)(p.shape_offsets[i + 1] - p.shape_offsets[i]);
        const uint64_t *shape = p.shapes + p.shape_offsets[i];
        require(zri_shape_nbytes(ndim, shape, r->schema.itemsize, &nbytes));
        require(nbytes == p.offsets[i + 1] - p.offsets[i]);
    }
    zr_parts_release(&p, 1);
}

static int count_finding(void *ctx, const struct zr_error *finding)
{
    require(finding->code < 0 && finding->message[0]);
    ++*(uint64_t *)ctx;
    return 0;
}

/* Together, neighbours that lie end to end are read by one call: the same as one by one. */
static void read_neighbours(struct zr_reader *r)
{
    uint64_t ids[IDS_MAX], row = r->schema.row_nbytes;
    size_t count = 0;
    for (; row <= RECORD_MAX && count < IDS_MAX && count < r->header.length; count++)
        ids[count] = count;
    if (!count || !decodes_alike(r))
        return;
    uint8_t *together = calloc(count, row), *alone = calloc(count, row);
    struct zr_error err = {0};
    require(together && alone);
    int rc = zr_gather_dense(r, ids, count, together, count * row, &err);
    size_t sound = 0;
    while (sound < count &&
           zr_gather_dense(r, ids + sound, 1, alone + sound * row, row, NULL) == ZR_OK)
        sound++;
    require(rc ? err.record == sound : sound == count);
    require(rc || !memcmp(together, alone, count * row));
    free(together);
    free(alone);
}

/* Only where decoding all of it stays small. */
static void verify(struct zr_reader *r)
{
    uint64_t total = 0, found = 0;
    struct zr_location loc;
    struct zr_verify_result result = {0};
    for (uint64_t id = 0; id < r->header.length; id++)
        if (zr_reader_locate(r, id, &loc, NULL) == ZR_OK)
            total += loc.logic_nbytes;
    if (total > RECORD_MAX || r->header.length > 64)
        return;
    require(zr_verify(r, count_finding, NULL, &found, &result, NULL) == ZR_OK);
    require(found == result.bad_count && result.checked_count == r->header.length);
}

static void read_all(struct zr_reader *r)
{
    static const uint64_t far[] = {0, 1, UINT64_MAX, UINT64_MAX / 16};
    uint64_t ids[IDS_MAX], nbytes;
    struct zr_info info;
    zr_reader_info(r, &info);
    zr_prefetch(r, far, 4);
    require(zr_record_npy_nbytes(r, info.length, &nbytes, NULL) == ZR_E_RANGE);
    require(zr_record_npy_nbytes(r, UINT64_MAX, &nbytes, NULL) == ZR_E_RANGE);
    for (uint64_t id = 0; id < info.length && id < IDS_MAX; id++)
        read_npy(r, id);
    size_t count = choose_ids(r, ids);
    if (info.geometry == ZR_DENSE) {
        read_dense(r, ids, count);
        read_neighbours(r);
    } else {
        read_ragged(r, ids, count);
        read_packed(r, ids, count);
    }
    verify(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t nbytes)
{
    struct store s = {0};
    struct zr_reader *r;
    if (nbytes < STORE_HEAD_NBYTES)
        return 0;
    zr_set_thread_count(1);
    zr_buffer_set_limit(0);
    unpack(&s, input, nbytes);
    if (input[0] & STORE_SIGN_SIDE)
        sign_side(&s);
    if (open_store(&s, s.has_side, &r) == ZR_OK) {
        read_all(r);
        zr_reader_close(r);
    }
    release(&s);
    return 0;
}
