/* SPDX-License-Identifier: MIT
 *
 * .npy headers: written as numpy.save writes them (NumPy 1.24 and later, which
 * leave room for the first axis to grow), parsed in versions 1 to 3 as
 * numpy.lib.format describes them.
 */
#include <inttypes.h>
#include <stdio.h>

#include "internal.h"

static const char magic[] = "\x93NUMPY";
#define MAGIC_NBYTES 6
#define V1_HEAD_NBYTES 10 /* magic, version, u16 length */
#define V2_HEAD_NBYTES 12 /* magic, version, u32 length */
#define ALIGN_NBYTES 64
#define GROWTH_DIGITS 21 /* numpy.lib.format.GROWTH_AXIS_MAX_DIGITS */
/* Longer headers than this are nothing NumPy would write for a plain dtype. */
#define MAX_PARSE_NBYTES 65536

static size_t digit_count(uint64_t v)
{
    size_t n = 1;
    while (v >= 10) {
        v /= 10;
        n++;
    }
    return n;
}

/* "()", "(3,)", "(3, 4)" */
static size_t shape_text_nbytes(uint32_t ndim, const uint64_t *shape)
{
    size_t n = 2 + (ndim == 1) + (ndim > 1 ? 2 * (size_t)(ndim - 1) : 0);
    for (uint32_t i = 0; i < ndim; i++)
        n += digit_count(shape[i]);
    return n;
}

size_t zri_npy_header_nbytes(const char *dtype, uint32_t ndim, const uint64_t *shape)
{
    size_t text = strlen("{'descr': '', 'fortran_order': False, 'shape': , }") + strlen(dtype) +
                  shape_text_nbytes(ndim, shape);
    if (ndim)
        text += GROWTH_DIGITS - digit_count(shape[0]);
    /* A newline ends it; NumPy pads an already aligned header by 64 more. */
    return ((V1_HEAD_NBYTES + text + 1) / ALIGN_NBYTES + 1) * ALIGN_NBYTES;
}

size_t zr_npy_header(const char *dtype, uint32_t ndim, const uint64_t *shape, void *buf)
{
    size_t total = zri_npy_header_nbytes(dtype, ndim, shape);
    char *out = buf;
    memset(out, ' ', total);
    memcpy(out, magic, MAGIC_NBYTES);
    out[6] = 1;
    out[7] = 0;
    out[8] = (char)((total - V1_HEAD_NBYTES) & 0xff);
    out[9] = (char)((total - V1_HEAD_NBYTES) >> 8);
    char *p = out + V1_HEAD_NBYTES, *end = out + total;
    p +=
        snprintf(p, (size_t)(end - p), "{'descr': '%s', 'fortran_order': False, 'shape': (", dtype);
    for (uint32_t i = 0; i < ndim; i++)
        p += snprintf(p, (size_t)(end - p), "%s%" PRIu64, i ? ", " : "", shape[i]);
    p += snprintf(p, (size_t)(end - p), "%s), }", ndim == 1 ? "," : "");
    *p = ' '; /* over snprintf's NUL */
    out[total - 1] = '\n';
    return total;
}

/* ---------------------------------------------------------------- parsing
 * The header is a Python literal: a dict of 'descr', 'fortran_order', 'shape' in
 * any order.  Only what NumPy writes for plain dtypes is taken. */

struct cursor {
    const char *p, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

static bool take(struct cursor *c, char ch)
{
    skip_space(c);
    if (c->p >= c->end || *c->p != ch)
        return false;
    c->p++;
    return true;
}

static bool take_word(struct cursor *c, const char *word)
{
    skip_space(c);
    size_t n = strlen(word);
    if ((size_t)(c->end - c->p) < n || memcmp(c->p, word, n))
        return false;
    c->p += n;
    return true;
}

/* A quoted string without escapes. */
static bool take_string(struct cursor *c, char *out, size_t capacity)
{
    skip_space(c);
    if (c->p >= c->end || (*c->p != '\'' && *c->p != '"'))
        return false;
    char quote = *c->p++;
    size_t n = 0;
    while (c->p < c->end && *c->p != quote) {
        if (*c->p == '\\' || n + 1 >= capacity)
            return false;
        out[n++] = *c->p++;
    }
    out[n] = 0;
    return take(c, quote);
}

static bool take_number(struct cursor *c, uint64_t *v)
{
    skip_space(c);
    const char *start = c->p;
    for (*v = 0; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++) {
        uint64_t digit = (uint64_t)(*c->p - '0');
        if (__builtin_mul_overflow(*v, 10, v) || __builtin_add_overflow(*v, digit, v))
            return false;
    }
    if (c->p == start)
        return false;
    if (c->p < c->end && *c->p == 'L') /* Python 2 wrote long integers so */
        c->p++;
    return true;
}

static const char *take_shape(struct cursor *c, struct zr_npy *npy)
{
    if (!take(c, '('))
        return "its shape is not a tuple";
    npy->ndim = 0;
    while (!take(c, ')')) {
        if (npy->ndim == ZR_MAX_NDIM)
            return "its shape has more than 64 dimensions";
        if (!take_number(c, &npy->shape[npy->ndim]))
            return "its shape holds something else than non-negative integers";
        npy->ndim++;
        if (!take(c, ',') && (skip_space(c), c->p >= c->end || *c->p != ')'))
            return "its shape is malformed";
    }
    return NULL;
}

static const char *take_descr(struct cursor *c, struct zr_npy *npy)
{
    skip_space(c);
    if (c->p < c->end && *c->p == '[')
        return "it has a structured dtype, which a store cannot hold";
    if (!take_string(c, npy->dtype, sizeof npy->dtype))
        return "its dtype is not a plain string";
    const char *why = zri_dtype_parse(npy->dtype, &npy->itemsize);
    if (why && strchr(npy->dtype, 'O'))
        return "it holds Python objects, which a store cannot hold";
    return why;
}

static const char *parse_dict(struct cursor *c, struct zr_npy *npy)
{
    unsigned seen = 0;
    char key[24];
    if (!take(c, '{'))
        return "its header is not a dict";
    while (!take(c, '}')) {
        if (!take_string(c, key, sizeof key) || !take(c, ':'))
            return "its header is malformed";
        const char *why = NULL;
        unsigned bit;
        if (!strcmp(key, "descr")) {
            bit = 1;
            why = take_descr(c, npy);
        } else if (!strcmp(key, "fortran_order")) {
            bit = 2;
            npy->fortran_order = take_word(c, "True");
            if (!npy->fortran_order && !take_word(c, "False"))
                why = "its fortran_order is not a bool";
        } else if (!strcmp(key, "shape")) {
            bit = 4;
            why = take_shape(c, npy);
        } else {
            return "its header has an unknown key";
        }
        if (why)
            return why;
        if (seen & bit)
            return "its header has a key twice";
        seen |= bit;
        if (!take(c, ',') && (skip_space(c), c->p >= c->end || *c->p != '}'))
            return "its header is malformed";
    }
    skip_space(c);
    return c->p != c->end ? "its header has text after the dict"
           : seen != 7    ? "its header lacks descr, fortran_order or shape"
                          : NULL;
}

static const char *check_size(struct zr_npy *npy, uint64_t file_nbytes)
{
    if (!zri_shape_nbytes(npy->ndim, npy->shape, npy->itemsize, &npy->data_nbytes))
        return "its shape is too large";
    if (npy->data_off > file_nbytes || npy->data_nbytes > file_nbytes - npy->data_off)
        return "it is cut short";
    return NULL;
}

static int need_more(struct zr_npy *npy, uint64_t nbytes, const char *name, struct zr_error *err)
{
    npy->data_off = nbytes;
    return zri_fail(err, ZR_E_BUFFER, "%s: its header takes the first %" PRIu64 " bytes", name,
                    nbytes);
}

int zr_npy_parse(const void *head, size_t nbytes, uint64_t file_nbytes, const char *name,
                 struct zr_npy *npy, struct zr_error *err)
{
    const uint8_t *b = head;
    struct zr_npy v = {0};
    if (file_nbytes < V1_HEAD_NBYTES)
        return zri_fail(err, ZR_E_NPY, "%s: not a .npy file: it has only %" PRIu64 " bytes", name,
                        file_nbytes);
    if (nbytes < V2_HEAD_NBYTES && nbytes < file_nbytes)
        return need_more(npy, V2_HEAD_NBYTES, name, err);
    if (memcmp(b, magic, MAGIC_NBYTES))
        return zri_fail(err, ZR_E_NPY, "%s: not a .npy file", name);
    if (b[6] < 1 || b[6] > 3)
        return zri_fail(err, ZR_E_NPY, "%s: .npy version %d.%d is not known", name, b[6], b[7]);
    size_t head_nbytes = b[6] == 1 ? V1_HEAD_NBYTES : V2_HEAD_NBYTES;
    if (file_nbytes < head_nbytes)
        return zri_fail(err, ZR_E_NPY, "%s: cannot use this .npy file: it is cut short", name);
    uint32_t text = (uint32_t)b[8] | (uint32_t)b[9] << 8;
    if (b[6] > 1)
        text |= (uint32_t)b[10] << 16 | (uint32_t)b[11] << 24;
    v.data_off = head_nbytes + text;
    const char *why = text > MAX_PARSE_NBYTES    ? "its header is longer than 64 KiB"
                      : v.data_off > file_nbytes ? "it is cut short"
                                                 : NULL;
    if (!why && v.data_off > nbytes)
        return need_more(npy, v.data_off, name, err);
    if (!why) {
        struct cursor c = {(const char *)b + head_nbytes, (const char *)b + v.data_off};
        why = parse_dict(&c, &v);
    }
    if (!why)
        why = check_size(&v, file_nbytes);
    if (why)
        return zri_fail(err, ZR_E_NPY, "%s: cannot use this .npy file: %s", name, why);
    *npy = v;
    return ZR_OK;
}
