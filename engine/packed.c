/* SPDX-License-Identifier: MIT
 *
 * Packed Ragged batches: payloads end to end, dims apart.
 *
 * Where a payload goes depends on the ranks of those before it, and a rank
 * stands in the record itself.  Nearly all stores have one rank, so that of the
 * first record is taken for all and the table alone gives the plan: each record
 * is then touched once.  A store in which that failed is planned record by
 * record.
 */
#include "internal.h"

/* How far ahead a table entry, or the start of a record, is pulled into the
 * CPU's caches. */
#define ENTRY_AHEAD 6
#define RECORD_AHEAD 3

/* ---------------------------------------------------------------- parts */

static void part_release(struct zr_part *p)
{
    zr_buffer_free(p->data);
    zr_buffer_free(p->offsets);
    zr_buffer_free(p->shapes);
    zr_buffer_free(p->shape_offsets);
    *p = (struct zr_part){0};
}

void zr_parts_release(struct zr_part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        part_release(&parts[i]);
}

static int out_of_memory(const struct zr_reader *r, struct zr_error *err)
{
    return zri_fail(err, ZR_E_NOMEM, "%s: out of memory for a batch", r->path);
}

/* ---------------------------------------------------------------- plans */

struct plan {
    struct zr_reader *r;
    const uint64_t *ids;
    size_t count;
    struct zr_part *part; /* offsets and shape_offsets are filled */
    bool mapped;
};

static void put(const struct plan *p, size_t i, const struct zri_entry *entry, uint32_t ndim)
{
    const struct zr_part *part = p->part;
    part->offsets[i + 1] = part->offsets[i] + entry->logic_nbytes - 8 * ((uint64_t)ndim + 1);
    part->shape_offsets[i + 1] = part->shape_offsets[i] + ndim;
}

/* From the table alone; *fits says whether all records may have this rank. */
static int plan_rank(const struct plan *p, uint32_t ndim, bool *fits, struct zr_error *err)
{
    const struct zr_reader *r = p->r;
    *fits = true;
    for (size_t i = 0; i < p->count && *fits; i++) {
        struct zri_entry entry;
        if (r->meta.bytes && i + ENTRY_AHEAD < p->count)
            __builtin_prefetch(r->meta.bytes + zri_entry_off(p->ids[i + ENTRY_AHEAD]));
        int rc = zri_reader_entry(r, p->ids[i], &entry, err);
        if (rc)
            return rc;
        *fits = entry.logic_nbytes > 8 * ((uint64_t)ndim + 1);
        if (*fits)
            put(p, i, &entry, ndim);
    }
    return ZR_OK;
}

static void pull_ahead(const struct plan *p, size_t i)
{
    const struct zr_reader *r = p->r;
    struct zri_entry e;
    if (i + ENTRY_AHEAD < p->count)
        __builtin_prefetch(r->meta.bytes + zri_entry_off(p->ids[i + ENTRY_AHEAD]));
    if (i + RECORD_AHEAD >= p->count)
        return;
    zri_entry_decode(&e, r->meta.bytes + zri_entry_off(p->ids[i + RECORD_AHEAD]));
    if (e.off < r->data.nbytes)
        __builtin_prefetch(r->data.bytes + e.off);
}

static int plan_each(const struct plan *p, struct zr_error *err)
{
    struct zr_reader *r = p->r;
    for (size_t i = 0; i < p->count; i++) {
        struct zri_entry entry;
        uint32_t ndim;
        if (p->mapped && r->meta.bytes)
            pull_ahead(p, i);
        int rc = zri_reader_entry(r, p->ids[i], &entry, err);
        if (!rc)
            rc = zri_record_ndim(r, p->ids[i], &entry, p->mapped, &ndim, err);
        if (rc)
            return rc;
        put(p, i, &entry, ndim);
    }
    return ZR_OK;
}

/* Through the mapping or, once that has failed, with pread. */
static int plan_records(struct plan *p, struct zr_error *err)
{
    if (zri_file_mapped(&p->r->data)) {
        struct zr_error mapped_err = {0};
        p->mapped = true;
        int rc = plan_each(p, &mapped_err);
        if (zri_file_trusted(&p->r->data))
            return rc ? zri_fail_as(err, &mapped_err) : ZR_OK;
    }
    p->mapped = false;
    return plan_each(p, err);
}

/* ---------------------------------------------------------------- gather */

static int gather_planned(const struct plan *p, bool *surprised, struct zr_error *err)
{
    struct zr_part *part = p->part;
    part->nbytes = part->offsets[p->count];
    part->data = zr_buffer_alloc(part->nbytes);
    part->shapes = zr_buffer_alloc(part->shape_offsets[p->count] * sizeof *part->shapes);
    if (!part->data || !part->shapes)
        return out_of_memory(p->r, err);
    return zri_gather_split(p->r, p->ids, p->count, part, surprised, err);
}

/* *surprised: nothing was gathered, since ranks differ or are damaged. */
static int gather_one_rank(struct plan *p, bool *surprised, struct zr_error *err)
{
    struct plan first = *p;
    struct zr_error unused;
    bool fits = false;
    first.count = 1;
    int rc = plan_records(&first, &unused)
                 ? ZR_OK
                 : plan_rank(p, (uint32_t)p->part->shape_offsets[1], &fits, err);
    *surprised = !fits;
    if (rc || !fits)
        return rc;
    rc = gather_planned(p, surprised, err);
    if (*surprised) {
        zr_buffer_free(p->part->data);
        zr_buffer_free(p->part->shapes);
        p->part->data = NULL;
        p->part->shapes = NULL;
    }
    return rc;
}

static int gather(struct plan *p, struct zr_error *err)
{
    bool surprised = true;
    int rc = ZR_OK;
    if (p->count && !atomic_load_explicit(&p->r->mixed_ranks, memory_order_relaxed)) {
        struct zr_error trial = {0};
        rc = gather_one_rank(p, &surprised, &trial);
        if (!surprised)
            return rc ? zri_fail_as(err, &trial) : ZR_OK;
        atomic_store_explicit(&p->r->mixed_ranks, true, memory_order_relaxed);
    }
    rc = plan_records(p, err);
    return rc ? rc : gather_planned(p, &surprised, err);
}

int zr_gather_packed(struct zr_reader *r, const uint64_t *ids, size_t count, struct zr_part *out,
                     struct zr_error *err)
{
    *out = (struct zr_part){0};
    int rc = zri_check_geometry(r, ZR_RAGGED, err);
    if (!rc)
        rc = zri_check_ids(r, ids, count, err);
    if (rc)
        return rc;
    struct plan p = {.r = r, .ids = ids, .count = count, .part = out};
    out->offsets = zr_buffer_alloc((count + 1) * sizeof *out->offsets);
    out->shape_offsets = zr_buffer_alloc((count + 1) * sizeof *out->shape_offsets);
    if (!out->offsets || !out->shape_offsets) {
        rc = out_of_memory(r, err);
    } else {
        out->offsets[0] = out->shape_offsets[0] = 0;
        zri_prefetch_batch(r, ids, count);
        rc = gather(&p, err);
    }
    if (rc)
        part_release(out);
    return rc;
}
