/* SPDX-License-Identifier: MIT
 *
 * Trains a dictionary for a source that is not a store yet: the same samples
 * that a store of it would give, since Ragged ones carry their shape.
 */
#include <stdlib.h>
#include <string.h>

#include "source.h"

#define SAMPLE_MAX_NBYTES ((size_t)128 << 10) /* a dictionary helps the start of a record */

struct samples {
    unsigned char *data;
    size_t used_nbytes, budget_nbytes;
    size_t *sizes;
    size_t count, capacity;
};

static void samples_release(struct samples *t)
{
    zr_buffer_free(t->data);
    free(t->sizes);
}

static bool grow_sizes(struct samples *t)
{
    if (t->count < t->capacity)
        return true;
    size_t larger = t->capacity ? t->capacity * 2 : 4096;
    size_t *sizes = reallocarray(t->sizes, larger, sizeof *sizes);
    if (!sizes)
        return false;
    t->sizes = sizes;
    t->capacity = larger;
    return true;
}

/* Appends bytes of the sample being built, cut to what still fits. */
static void add_bytes(struct samples *t, size_t start, const void *data, size_t nbytes)
{
    size_t limit = t->budget_nbytes - t->used_nbytes;
    size_t room = SAMPLE_MAX_NBYTES - (t->used_nbytes - start);

    if (room < limit)
        limit = room;
    if (nbytes > limit)
        nbytes = limit;
    memcpy(t->data + t->used_nbytes, data, nbytes);
    t->used_nbytes += nbytes;
}

static int add_sample(struct samples *t, const struct zr_item *shape, const void *data,
                      size_t nbytes)
{
    size_t start = t->used_nbytes;

    if (!grow_sizes(t))
        return fail_nomem();
    if (shape) {
        uint64_t ndim = shape->ndim;
        add_bytes(t, start, &ndim, sizeof ndim);
        add_bytes(t, start, shape->shape, ndim * sizeof *shape->shape);
    }
    add_bytes(t, start, data, nbytes);
    t->sizes[t->count++] = t->used_nbytes - start;
    return 0;
}

/* How many records to step over so that the budget covers the whole source. */
static uint64_t sample_stride(const struct source *s, uint64_t count, size_t budget_nbytes)
{
    uint64_t mean = s->stream ? s->row_nbytes : count ? s->data_nbytes / count : 0;

    if (mean > SAMPLE_MAX_NBYTES)
        mean = SAMPLE_MAX_NBYTES;
    uint64_t wanted = budget_nbytes / (mean ? mean : 1);
    return wanted ? (count + wanted - 1) / wanted : count;
}

static int collect_one(struct source *s, uint64_t id, struct batch *b, struct samples *t)
{
    int status = source_fill(s, id, 1, b);

    return status ? status : add_sample(t, s->ragged ? b->items : NULL, b->data, b->used_nbytes);
}

static int collect(struct source *s, struct samples *t)
{
    int status = s->stream ? stream_keep_head(s, t->budget_nbytes) : 0;
    uint64_t count = s->stream ? s->head_count : s->record_count;
    uint64_t stride = sample_stride(s, count, t->budget_nbytes);
    struct batch b = {0};

    t->data = zr_buffer_alloc(t->budget_nbytes);
    if (!t->data)
        return fail_nomem();
    for (uint64_t id = 0; !status && id < count && t->used_nbytes < t->budget_nbytes; id += stride)
        status = collect_one(s, id, &b, t);
    batch_release(&b);
    return status;
}

static int train(const struct source *s, const struct samples *t, size_t capacity, void **dict,
                 size_t *dict_nbytes)
{
    struct zr_error err;
    void *block = zr_buffer_alloc(capacity);

    if (!block)
        return fail_nomem();
    if (zr_dict_train(t->data, t->sizes, t->count, block, capacity, dict_nbytes, &err) == ZR_OK) {
        *dict = block;
        return 0;
    }
    zr_buffer_free(block);
    diag("%s: %s", s->path, err.message);
    return EXIT_FAILED;
}

int source_train(struct source *s, int tier, void **dict, size_t *dict_nbytes)
{
    struct samples t = {0};
    size_t capacity;

    zr_tier_sizes(tier, &capacity, &t.budget_nbytes);
    int status = collect(s, &t);
    if (!status)
        status = train(s, &t, capacity, dict, dict_nbytes);
    samples_release(&t);
    return status;
}
