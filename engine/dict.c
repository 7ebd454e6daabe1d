/* SPDX-License-Identifier: MIT
 *
 * Dictionary training: samples at a stride over the whole source, trained by
 * zstd's ZDICT.
 */
#define ZDICT_STATIC_LINKING_ONLY
#include <zdict.h>
#include <zstd_errors.h>

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "internal.h"

static const struct {
    const char *name;
    size_t dict_nbytes, sample_nbytes;
} tiers[] = {
    [ZR_TIER_BALANCED] = {"balanced", (size_t)128 << 10, (size_t)16 << 20},
    [ZR_TIER_FAST] = {"fast", (size_t)32 << 10, (size_t)4 << 20},
    [ZR_TIER_MAX] = {"max", (size_t)1 << 20, (size_t)64 << 20},
};
#define TIER_COUNT ((int)(sizeof tiers / sizeof tiers[0]))

int zr_tier_from_name(const char *name)
{
    for (int i = 0; name && i < TIER_COUNT; i++)
        if (!strcmp(name, tiers[i].name))
            return i;
    return -1;
}

int zr_tune_from_name(const char *name)
{
    static const char *const names[] = {"default", "read", "write"};
    for (int i = 0; name && i <= ZR_TUNE_WRITE; i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

void zr_tier_sizes(int tier, size_t *dict_nbytes, size_t *sample_nbytes)
{
    int t = tier < 0 || tier >= TIER_COUNT ? ZR_TIER_BALANCED : tier;
    *dict_nbytes = tiers[t].dict_nbytes;
    *sample_nbytes = tiers[t].sample_nbytes;
}

/* ZDICT_trainFromBuffer picks among four segment sizes by what it packs at level 3,
 * from three quarters of the samples.  All of them with segments of 200 bytes, and
 * statistics of level 12, in about its time: level 19 then packs rows and paragraphs
 * of text as int32 ids 1.5 and 5.9 % tighter, 2 KiB of text 2.8 %; level 19's
 * statistics are no better for five times the time. */
static const ZDICT_fastCover_params_t cover = {
    .k = 200, .d = 8, .f = 20, .accel = 1, .zParams = {.compressionLevel = 12}};

int zr_dict_train(const void *samples, const size_t *sample_nbytes, size_t count, void *dict,
                  size_t dict_capacity, size_t *dict_nbytes, struct zr_error *err)
{
    if (count > UINT_MAX)
        return zri_fail(err, ZR_E_TRAIN, "dictionary training: too many samples");
    size_t n = ZDICT_trainFromBuffer_fastCover(dict, dict_capacity, samples, sample_nbytes,
                                               (unsigned)count, cover);
    if (ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation)
        return zri_fail(err, ZR_E_NOMEM, "dictionary training: %s", zri_out_of_memory);
    if (ZDICT_isError(n))
        return zri_fail(err, ZR_E_TRAIN,
                        "dictionary training failed on %zu samples (too few or too small): %s",
                        count, ZDICT_getErrorName(n));
    *dict_nbytes = n;
    return ZR_OK;
}

/* Ids at an even stride whose decoded sizes stay within the budget. */
static int choose_samples(struct zr_reader *r, size_t budget, uint64_t **ids, size_t *sizes_total,
                          size_t *count, struct zr_error *err)
{
    uint64_t length = r->header.length, mean = 0;
    uint64_t probes = length < 64 ? length : 64;
    for (uint64_t k = 0; k < probes; k++) {
        struct zr_location loc;
        int rc = zr_reader_locate(r, length / probes * k, &loc, err);
        if (rc)
            return rc;
        mean += loc.logic_nbytes;
    }
    mean = mean / probes + 1;
    uint64_t n = budget / mean < length ? budget / mean : length;
    n = n ? n : 1;
    *ids = malloc(n * sizeof **ids);
    if (!*ids)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", r->path);
    *sizes_total = 0;
    *count = 0;
    for (uint64_t k = 0; k < n; k++) {
        uint64_t id = (uint64_t)((unsigned __int128)length * k / n);
        struct zr_location loc;
        int rc = zr_reader_locate(r, id, &loc, err);
        if (rc)
            return rc;
        if (*count && *sizes_total + loc.logic_nbytes > budget + budget / 4)
            break;
        (*ids)[(*count)++] = id;
        *sizes_total += loc.logic_nbytes;
    }
    return ZR_OK;
}

static int load_samples(struct zr_reader *r, const uint64_t *ids, size_t count, uint8_t *samples,
                        size_t *sizes, struct zr_error *err)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        struct zri_entry entry;
        int rc = zri_reader_entry(r, ids[i], &entry, err);
        if (!rc)
            rc = zri_gather_one(r, ids[i], &entry, samples + used, err);
        if (rc)
            return rc;
        sizes[i] = entry.logic_nbytes;
        used += entry.logic_nbytes;
    }
    return ZR_OK;
}

int zr_dict_train_store(struct zr_reader *r, int tier, void **dict, size_t *dict_nbytes,
                        struct zr_error *err)
{
    size_t capacity, budget, total = 0, count = 0;
    uint64_t *ids = NULL;
    struct zr_error training; /* does not know whose samples they are */
    zr_tier_sizes(tier, &capacity, &budget);
    if (r->header.length == 0)
        return zri_fail(err, ZR_E_TRAIN, "%s: cannot train a dictionary on an empty store",
                        r->path);
    int rc = choose_samples(r, budget, &ids, &total, &count, err);
    uint8_t *samples = rc ? NULL : zr_buffer_alloc(total);
    size_t *sizes = rc ? NULL : malloc(count * sizeof *sizes);
    void *out = rc ? NULL : zr_buffer_alloc(capacity);
    if (!rc && (!samples || !sizes || !out))
        rc = zri_fail(err, ZR_E_NOMEM, "%s: out of memory", r->path);
    if (!rc)
        rc = load_samples(r, ids, count, samples, sizes, err);
    if (!rc && zr_dict_train(samples, sizes, count, out, capacity, dict_nbytes, &training))
        rc = zri_fail(err, training.code, "%s: %s", r->path, training.message);
    free(ids);
    free(sizes);
    zr_buffer_free(samples);
    if (rc)
        zr_buffer_free(out);
    else
        *dict = out;
    return rc;
}
