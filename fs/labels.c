/* SPDX-License-Identifier: MIT
 *
 * Two passes over the store: the first finds the different values and counts them, the
 * second puts each record with its value.  Values are compared as bytes, which for these
 * dtypes is comparing them.
 */
#include "labels.h"

#include "zrecord.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { BATCH = 4096, NAME_NBYTES = 256, SLOTS = 1 << 18 };
_Static_assert(SLOTS >= 4 * LABELS_MAX_COUNT, "the table is never nearly full");

struct label {
    uint8_t *value; /* itemsize bytes */
    char *name;
    int64_t number; /* of an integer: what it is sorted by, with is_huge */
    bool is_huge;   /* above INT64_MAX */
    uint32_t count;
    uint32_t *ids; /* inside labels.ids */
};

struct labels {
    uint64_t length, itemsize;
    char kind; /* of the dtype: b, i, u, S, U */
    bool is_big_endian;
    size_t count;
    struct label *sorted; /* count, by rank */
    uint32_t *ids;
    /* While it is made: */
    uint32_t *slots; /* 1 + position in found */
};

static int fail(struct zr_error *err, int code, const char *path, const char *why)
{
    *err = (struct zr_error){.code = code, .record = ZR_NO_RECORD, .offset = UINT64_MAX};
    snprintf(err->message, sizeof err->message, "%.800s: classes= needs %s", path, why);
    return code;
}

void labels_free(struct labels *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->count; i++) {
        free(l->sorted[i].value);
        free(l->sorted[i].name);
    }
    free(l->sorted);
    free(l->ids);
    free(l->slots);
    free(l);
}

/* ---------------------------------------------------------------- values */

static struct label *find_slot(struct labels *l, const uint8_t *value, uint32_t **slot)
{
    size_t at = XXH3_64bits(value, l->itemsize) % SLOTS;
    for (;; at = (at + 1) % SLOTS) {
        *slot = &l->slots[at];
        if (!**slot)
            return NULL;
        struct label *label = &l->sorted[**slot - 1];
        if (memcmp(label->value, value, l->itemsize) == 0)
            return label;
    }
}

static int count_value(struct labels *l, const uint8_t *value)
{
    uint32_t *slot;
    struct label *label = find_slot(l, value, &slot);
    if (label) {
        label->count++;
        return ZR_OK;
    }
    if (l->count == LABELS_MAX_COUNT)
        return ZR_E_TOO_LARGE;
    label = &l->sorted[l->count];
    *label = (struct label){.value = malloc(l->itemsize), .count = 1};
    if (!label->value)
        return ZR_E_NOMEM;
    memcpy(label->value, value, l->itemsize);
    *slot = (uint32_t)++l->count;
    return ZR_OK;
}

static int place_value(struct labels *l, const uint8_t *value, uint64_t id)
{
    uint32_t *slot;
    struct label *label = find_slot(l, value, &slot);
    if (!label)
        return ZR_E_CORRUPT; /* the store changed between the passes */
    label->ids[label->count++] = (uint32_t)id;
    return ZR_OK;
}

/* Reads all values and hands each to the pass. */
static int run_pass(struct labels *l, struct zr_reader *reader, bool is_second,
                    struct zr_error *err)
{
    uint64_t ids[BATCH];
    uint8_t *values = malloc(BATCH * l->itemsize);
    int code = values ? ZR_OK : ZR_E_NOMEM;
    for (uint64_t first = 0; first < l->length && code == ZR_OK; first += BATCH) {
        size_t n = l->length - first < BATCH ? (size_t)(l->length - first) : BATCH;
        for (size_t i = 0; i < n; i++)
            ids[i] = first + i;
        code = zr_gather_dense(reader, ids, n, values, n * l->itemsize, err);
        for (size_t i = 0; i < n && code == ZR_OK; i++) {
            const uint8_t *value = values + i * l->itemsize;
            code = is_second ? place_value(l, value, first + i) : count_value(l, value);
        }
    }
    free(values);
    return code;
}

/* ---------------------------------------------------------------- names */

static uint64_t unsigned_value(const struct labels *l, const uint8_t *value)
{
    uint64_t number = 0;
    for (size_t i = 0; i < l->itemsize; i++)
        number = number << 8 | value[l->is_big_endian ? i : l->itemsize - 1 - i];
    return number;
}

static void read_number(const struct labels *l, struct label *label)
{
    uint64_t number = unsigned_value(l, label->value);
    unsigned shift = 64 - 8 * (unsigned)l->itemsize;
    if (l->kind == 'i')
        label->number = (int64_t)(number << shift) >> shift;
    else
        label->number = (int64_t)number;
    label->is_huge = l->kind != 'i' && number > INT64_MAX;
}

/* The code points of a U string as UTF-8, the bytes of an S string as they are.  Without
 * what a file name cannot hold, and never hidden. */
static void read_string(const struct labels *l, const struct label *label, char *name)
{
    char *to = name;
    size_t unit = l->kind == 'U' ? 4 : 1;
    for (size_t i = 0; i < l->itemsize && to < name + NAME_NBYTES - 8; i += unit) {
        uint32_t c = label->value[i];
        if (unit == 4)
            c = l->is_big_endian
                    ? (uint32_t)label->value[i] << 24 | (uint32_t)label->value[i + 1] << 16 |
                          (uint32_t)label->value[i + 2] << 8 | label->value[i + 3]
                    : (uint32_t)label->value[i + 3] << 24 | (uint32_t)label->value[i + 2] << 16 |
                          (uint32_t)label->value[i + 1] << 8 | label->value[i];
        if (c == 0 || c == '/' || (c == '.' && to == name))
            c = c ? '_' : 0;
        if (c == 0)
            continue;
        if (unit == 1 || c < 0x80) {
            *to++ = (char)c;
        } else if (c < 0x800) {
            *to++ = (char)(0xc0 | c >> 6);
            *to++ = (char)(0x80 | (c & 0x3f));
        } else {
            if (c >= 0x10000)
                *to++ = (char)(0xf0 | (c >> 18 & 7));
            *to++ = (char)((c >= 0x10000 ? 0x80 : 0xe0) | (c >> 12 & (c >= 0x10000 ? 0x3f : 0xf)));
            *to++ = (char)(0x80 | (c >> 6 & 0x3f));
            *to++ = (char)(0x80 | (c & 0x3f));
        }
    }
    if (to == name)
        *to++ = '_';
    *to = '\0';
}

static int by_number(const void *a, const void *b)
{
    const struct label *x = a, *y = b;
    if (x->is_huge != y->is_huge)
        return x->is_huge - y->is_huge;
    return x->number < y->number ? -1 : x->number > y->number;
}

static int by_name(const void *a, const void *b)
{
    const struct label *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->ids < y->ids ? -1 : x->ids > y->ids;
}

static int format_number(const struct label *label, int width, char *name)
{
    if (label->is_huge)
        return snprintf(name, NAME_NBYTES, "%0*llu", width, (unsigned long long)label->number);
    return snprintf(name, NAME_NBYTES, "%0*lld", width, (long long)label->number);
}

static bool name_numbers(struct labels *l)
{
    char name[NAME_NBYTES];
    int width = 1;
    for (size_t i = 0; i < l->count; i++) {
        read_number(l, &l->sorted[i]);
        int n = format_number(&l->sorted[i], 1, name);
        width = n > width ? n : width;
    }
    qsort(l->sorted, l->count, sizeof *l->sorted, by_number);
    for (size_t i = 0; i < l->count; i++) {
        format_number(&l->sorted[i], width, name);
        if (!(l->sorted[i].name = strdup(name)))
            return false;
    }
    return true;
}

/* Different values may have one name by now: then all but the first get a number. */
static bool name_strings(struct labels *l)
{
    char name[NAME_NBYTES];
    for (size_t i = 0; i < l->count; i++) {
        read_string(l, &l->sorted[i], name);
        if (!(l->sorted[i].name = strdup(name)))
            return false;
    }
    qsort(l->sorted, l->count, sizeof *l->sorted, by_name);
    for (size_t i = 1, same = 0; i < l->count; i++) {
        char *before = l->sorted[i - same - 1].name, *again;
        same = strcmp(before, l->sorted[i].name) == 0 ? same + 1 : 0;
        if (!same)
            continue;
        if (asprintf(&again, "%s_%zu", before, same + 1) < 0)
            return false;
        free(l->sorted[i].name);
        l->sorted[i].name = again;
    }
    qsort(l->sorted, l->count, sizeof *l->sorted, by_name);
    return true;
}

/* ---------------------------------------------------------------- making */

static const char *check(const struct zr_info *info)
{
    if (info->geometry != ZR_DENSE || info->ndim != 0)
        return "a store of scalars";
    if (!strchr("biuSU", info->dtype[1]))
        return "labels that are bool, integers or strings";
    if (info->length > UINT32_MAX)
        return "fewer than 2^32 labels";
    return NULL;
}

/* After the first pass: where each label's records go.  Sorting moves labels, so slots are
 * made again. */
static bool lay_out(struct labels *l)
{
    uint32_t *ids = l->ids = malloc(l->length * sizeof *ids + 1);
    if (!ids || !(strchr("SU", l->kind) ? name_strings(l) : name_numbers(l)))
        return false;
    memset(l->slots, 0, SLOTS * sizeof *l->slots);
    for (size_t i = 0; i < l->count; i++) {
        uint32_t *slot;
        find_slot(l, l->sorted[i].value, &slot);
        *slot = (uint32_t)i + 1;
        l->sorted[i].ids = ids;
        ids += l->sorted[i].count;
        l->sorted[i].count = 0;
    }
    return true;
}

static int make(struct labels *l, struct zr_reader *reader, const char *path, struct zr_error *err)
{
    l->sorted = malloc(LABELS_MAX_COUNT * sizeof *l->sorted);
    l->slots = calloc(SLOTS, sizeof *l->slots);
    if (!l->sorted || !l->slots)
        return fail(err, ZR_E_NOMEM, path, "memory");
    int code = run_pass(l, reader, false, err);
    if (code == ZR_E_TOO_LARGE)
        return fail(err, code, path, "at most 65536 different labels");
    if (code == ZR_OK && !lay_out(l))
        code = ZR_E_NOMEM;
    if (code == ZR_OK)
        code = run_pass(l, reader, true, err);
    if (code == ZR_E_NOMEM)
        return fail(err, code, path, "memory");
    return code;
}

static void trim(struct labels *l)
{
    struct label *fitting = realloc(l->sorted, l->count * sizeof *l->sorted + 1);
    if (fitting)
        l->sorted = fitting;
}

int labels_new(struct labels **out, struct zr_reader *reader, struct zr_error *err)
{
    struct zr_info info;
    *out = NULL;
    zr_reader_info(reader, &info);
    const char *missing = check(&info);
    if (missing)
        return fail(err, ZR_E_SCHEMA, info.path, missing);
    struct labels *l = calloc(1, sizeof *l);
    if (!l)
        return fail(err, ZR_E_NOMEM, info.path, "memory");
    l->length = info.length;
    l->itemsize = info.itemsize;
    l->kind = info.dtype[1] == 'b' ? 'u' : info.dtype[1];
    l->is_big_endian = info.dtype[0] == '>';
    int code = make(l, reader, info.path, err);
    if (code != ZR_OK) {
        labels_free(l);
        return code;
    }
    free(l->slots);
    l->slots = NULL;
    trim(l);
    *out = l;
    return ZR_OK;
}

/* ---------------------------------------------------------------- asking */

size_t labels_count(const struct labels *l)
{
    return l->count;
}

const char *labels_name(const struct labels *l, size_t rank)
{
    return l->sorted[rank].name;
}

/* Numbers are not sorted by their names where some are negative, and there are few. */
bool labels_find(const struct labels *l, const char *name, size_t *rank)
{
    for (size_t i = 0; i < l->count; i++) {
        if (strcmp(l->sorted[i].name, name) == 0) {
            *rank = i;
            return true;
        }
    }
    return false;
}

const uint32_t *labels_ids(const struct labels *l, size_t rank, size_t *count)
{
    *count = l->sorted[rank].count;
    return l->sorted[rank].ids;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

bool labels_has(const struct labels *l, size_t rank, uint64_t id)
{
    uint32_t wanted = (uint32_t)id;
    const struct label *label = &l->sorted[rank];
    return id < l->length && bsearch(&wanted, label->ids, label->count, sizeof wanted, by_id);
}
