/* SPDX-License-Identifier: MIT
 *
 * The schema in the first page: a MsgPack map of dtype and, for Dense,
 * item_shape.  MsgPack itself is msgpack-c's.
 */
#include <msgpack.h>
#include <stdlib.h>

#include "internal.h"

static bool digits_to_u64(const char **s, uint64_t *v)
{
    const char *p = *s;
    *v = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (*v > (UINT64_MAX - 9) / 10)
            return false;
        *v = *v * 10 + (uint64_t)(*p - '0');
    }
    bool any = p != *s;
    *s = p;
    return any;
}

/* "[ns]", "[25s]", "[ms/4]" or nothing: the unit of datetime64 and timedelta64. */
static bool time_unit(const char *p)
{
    static const char *const units[] = {"Y",  "M",  "W",  "D",  "h",  "m",  "s",
                                        "ms", "us", "ns", "ps", "fs", "as", "generic"};
    uint64_t n;
    if (!*p)
        return true;
    if (*p++ != '[')
        return false;
    digits_to_u64(&p, &n);
    size_t len = strspn(p, "YMWDhmsunpfagenric");
    bool known = false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        known |= strlen(units[i]) == len && !memcmp(units[i], p, len);
    p += len;
    if (*p == '/') {
        p++;
        known &= digits_to_u64(&p, &n);
    }
    return known && p[0] == ']' && !p[1];
}

static bool is_one_of(uint64_t n, const char *sizes)
{
    for (; *sizes; sizes++)
        if (n == (uint64_t)*sizes)
            return true;
    return false;
}

const char *zri_dtype_parse(const char *dtype, uint64_t *itemsize)
{
    if (strnlen(dtype, ZR_DTYPE_MAX) >= ZR_DTYPE_MAX)
        return "dtype string is too long";
    char order = dtype[0], kind = order ? dtype[1] : 0;
    if (!order || !strchr("<>|", order))
        return "dtype string has no byte order";
    if (!kind || !strchr("biufcmMSUV", kind))
        return kind == 'O' ? "object dtypes cannot be stored" : "unknown dtype kind";
    const char *p = dtype + 2;
    uint64_t n;
    if (*p == '0' || !digits_to_u64(&p, &n))
        return "dtype string has no size";
    bool time = kind == 'm' || kind == 'M';
    if (time ? !time_unit(p) : *p)
        return "dtype string has trailing characters";
    bool fits;
    switch (kind) {
    case 'b':
        fits = n == 1;
        break;
    case 'i':
    case 'u':
        fits = is_one_of(n, "\1\2\4\10");
        break;
    case 'f':
        fits = is_one_of(n, "\2\4\10\20");
        break;
    case 'c':
        fits = is_one_of(n, "\10\20\40");
        break;
    case 'm':
    case 'M':
        fits = n == 8;
        break;
    default: /* S, U, V: any length */
        fits = n >= 1 && n <= ZR_MAX_RECORD_NBYTES;
        n *= fits && kind == 'U' ? 4 : 1;
    }
    if (!fits || n > ZR_MAX_RECORD_NBYTES)
        return "dtype has a size that NumPy does not have";
    if (order == '|' && n > 1 && strchr("iufcmMU", kind))
        return "dtype string has no byte order";
    *itemsize = n;
    return NULL;
}

int zr_dtype_itemsize(const char *dtype, uint64_t *itemsize, struct zr_error *err)
{
    uint64_t n;
    const char *why = dtype ? zri_dtype_parse(dtype, &n) : "no dtype";
    if (why)
        return zri_fail(err, ZR_E_SCHEMA, "dtype '%.64s': %s", dtype ? dtype : "", why);
    *itemsize = n;
    return ZR_OK;
}

bool zri_shape_nbytes(uint32_t ndim, const uint64_t *shape, uint64_t itemsize, uint64_t *nbytes)
{
    /* A zero anywhere makes the product zero, whatever overflows before it. */
    for (uint32_t i = 0; i < ndim; i++)
        if (shape[i] == 0) {
            *nbytes = 0;
            return true;
        }
    uint64_t n = itemsize;
    for (uint32_t i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(n, shape[i], &n))
            return false;
    *nbytes = n;
    return true;
}

const char *zri_schema_set(struct zri_schema *s, int geometry, const char *dtype, uint32_t ndim,
                           const uint64_t *shape)
{
    *s = (struct zri_schema){.geometry = geometry};
    const char *why = zri_dtype_parse(dtype, &s->itemsize);
    if (why)
        return why;
    memcpy(s->dtype, dtype, strlen(dtype) + 1); /* its length was checked */
    /* As NumPy spells it, whatever the writer did: .npy headers are compared. */
    if (strchr("SV", dtype[1]) || (s->itemsize == 1 && strchr("biu", dtype[1])))
        s->dtype[0] = '|';
    if (geometry == ZR_RAGGED)
        return NULL;
    if (ndim >= ZR_MAX_NDIM)
        return "item_shape has 64 dimensions or more";
    s->ndim = ndim;
    if (ndim)
        memcpy(s->shape, shape, ndim * sizeof *shape);
    if (!zri_shape_nbytes(ndim, shape, s->itemsize, &s->row_nbytes) ||
        s->row_nbytes > ZR_MAX_RECORD_NBYTES)
        return "a record of this item_shape exceeds the limit of 2 GiB";
    return s->row_nbytes ? NULL : "a record of this item_shape has no bytes";
}

static int pack_str(msgpack_packer *pk, const char *s)
{
    return msgpack_pack_str(pk, strlen(s)) || msgpack_pack_str_body(pk, s, strlen(s));
}

static int pack_schema(msgpack_packer *pk, const struct zri_schema *s)
{
    int failed = msgpack_pack_map(pk, s->geometry == ZR_DENSE ? 2 : 1) || pack_str(pk, "dtype") ||
                 pack_str(pk, s->dtype);
    if (failed || s->geometry == ZR_RAGGED)
        return failed;
    failed = pack_str(pk, "item_shape") || msgpack_pack_array(pk, s->ndim);
    for (uint32_t i = 0; !failed && i < s->ndim; i++)
        failed = msgpack_pack_uint64(pk, s->shape[i]);
    return failed;
}

const char *zri_schema_encode(const struct zri_schema *s, uint8_t *buf, size_t *nbytes)
{
    msgpack_sbuffer sb;
    msgpack_packer pk;
    msgpack_sbuffer_init(&sb);
    msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
    bool fits = !pack_schema(&pk, s) && sb.size <= ZRI_SCHEMA_MAX;
    if (fits) {
        memcpy(buf, sb.data, sb.size);
        *nbytes = sb.size;
    }
    msgpack_sbuffer_destroy(&sb);
    return fits ? NULL : zri_out_of_memory;
}

/* msgpack-c allocates a container before it sees whether its elements follow, so
 * five bytes could ask for 64 GiB: the two containers of a schema are taken apart
 * here, and msgpack-c decodes what is in them one scalar at a time. */
struct cursor {
    const uint8_t *bytes;
    size_t nbytes, off;
    msgpack_unpacked scalar;
    bool out_of_memory;
};

/* A map or array of at most 65535 elements: `fix` with the count in its low bits,
 * or `wide` with two bytes of count. */
static bool take_count(struct cursor *c, uint8_t fix, uint8_t wide, uint32_t *count)
{
    const uint8_t *p = c->bytes + c->off;
    size_t left = c->nbytes - c->off;
    if (left >= 1 && (p[0] & 0xf0) == fix) {
        *count = p[0] & 0x0f;
        c->off += 1;
        return true;
    }
    if (left >= 3 && p[0] == wide) {
        *count = (uint32_t)p[1] << 8 | p[2];
        c->off += 3;
        return true;
    }
    return false;
}

static bool is_container(uint8_t first)
{
    return (first >= 0x80 && first <= 0x9f) || (first >= 0xdc && first <= 0xdf);
}

/* The next scalar, or NULL: it lives until the next call. */
static const msgpack_object *take_scalar(struct cursor *c)
{
    if (c->off >= c->nbytes || is_container(c->bytes[c->off]))
        return NULL;
    msgpack_unpack_return rc =
        msgpack_unpack_next(&c->scalar, (const char *)c->bytes, c->nbytes, &c->off);
    c->out_of_memory |= rc == MSGPACK_UNPACK_NOMEM_ERROR;
    return rc == MSGPACK_UNPACK_SUCCESS ? &c->scalar.data : NULL;
}

static bool is_str(const msgpack_object *o, const char *s)
{
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(s) &&
           !memcmp(o->via.str.ptr, s, strlen(s));
}

static const char *take_dtype(struct cursor *c, char *dtype)
{
    const msgpack_object *o = take_scalar(c);
    if (!o || o->type != MSGPACK_OBJECT_STR)
        return "schema dtype is not a string";
    if (o->via.str.size == 0 || o->via.str.size >= ZR_DTYPE_MAX ||
        memchr(o->via.str.ptr, 0, o->via.str.size))
        return "schema dtype is not a NumPy dtype string";
    memcpy(dtype, o->via.str.ptr, o->via.str.size);
    dtype[o->via.str.size] = 0;
    return NULL;
}

static const char *take_shape(struct cursor *c, uint32_t *ndim, uint64_t *shape)
{
    if (!take_count(c, 0x90, 0xdc, ndim))
        return "schema item_shape is not an array";
    if (*ndim >= ZR_MAX_NDIM)
        return "schema item_shape has 64 dimensions or more";
    for (uint32_t i = 0; i < *ndim; i++) {
        const msgpack_object *dim = take_scalar(c);
        if (!dim || dim->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            return "schema item_shape holds something else than non-negative integers";
        shape[i] = dim->via.u64;
    }
    return NULL;
}

static const char *take_map(struct cursor *c, struct zri_schema *s)
{
    char dtype[ZR_DTYPE_MAX];
    uint64_t shape[ZR_MAX_NDIM];
    uint32_t count, ndim = 0;
    bool has_dtype = false, has_shape = false;
    if (!take_count(c, 0x80, 0xde, &count))
        return "schema is not a map";
    for (uint32_t i = 0; i < count; i++) {
        const msgpack_object *key = take_scalar(c);
        const char *why;
        if (!key)
            return "schema is not valid MsgPack";
        if (is_str(key, "dtype") && !has_dtype) {
            has_dtype = true;
            why = take_dtype(c, dtype);
        } else if (is_str(key, "item_shape") && !has_shape) {
            has_shape = true;
            why = take_shape(c, &ndim, shape);
        } else {
            why = "schema has a key that is neither dtype nor item_shape, or one twice";
        }
        if (why)
            return why;
    }
    if (c->off != c->nbytes)
        return "schema has bytes after its map";
    if (!has_dtype)
        return "schema has no dtype";
    return zri_schema_set(s, has_shape ? ZR_DENSE : ZR_RAGGED, dtype, ndim, shape);
}

const char *zri_schema_decode(struct zri_schema *s, const uint8_t *buf, size_t nbytes)
{
    struct cursor c = {.bytes = buf, .nbytes = nbytes};
    msgpack_unpacked_init(&c.scalar);
    const char *why = take_map(&c, s);
    msgpack_unpacked_destroy(&c.scalar);
    return c.out_of_memory ? zri_out_of_memory : why;
}

const char *zr_codec_name(int codec)
{
    static const char *const names[] = {"raw", "zstd", "zstd_dict"};
    return codec >= 0 && codec <= ZR_ZSTD_DICT ? names[codec] : NULL;
}

int zr_codec_from_name(const char *name)
{
    for (int i = 0; name && i <= ZR_ZSTD_DICT; i++)
        if (!strcmp(name, zr_codec_name(i)))
            return i;
    return name && !strcmp(name, "zstdict") ? ZR_ZSTD_DICT : -1;
}

const char *zr_geometry_name(int geometry)
{
    return geometry == ZR_DENSE ? "dense" : geometry == ZR_RAGGED ? "ragged" : NULL;
}
