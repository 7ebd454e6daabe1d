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
    static const char *const units[] = {"Y", "M", "W", "D", "h", "m", "s", "ms",
                                        "us", "ns", "ps", "fs", "as", "generic"};
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
    if (!digits_to_u64(&p, &n))
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
    strcpy(s->dtype, dtype); /* its length was checked */
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

static void pack_str(msgpack_packer *pk, const char *s)
{
    msgpack_pack_str(pk, strlen(s));
    msgpack_pack_str_body(pk, s, strlen(s));
}

const char *zri_schema_encode(const struct zri_schema *s, uint8_t *buf, size_t *nbytes)
{
    msgpack_sbuffer sb;
    msgpack_packer pk;
    msgpack_sbuffer_init(&sb);
    msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, s->geometry == ZR_DENSE ? 2 : 1);
    pack_str(&pk, "dtype");
    pack_str(&pk, s->dtype);
    if (s->geometry == ZR_DENSE) {
        pack_str(&pk, "item_shape");
        msgpack_pack_array(&pk, s->ndim);
        for (uint32_t i = 0; i < s->ndim; i++)
            msgpack_pack_uint64(&pk, s->shape[i]);
    }
    bool fits = sb.data && sb.size <= ZRI_SCHEMA_MAX;
    if (fits) {
        memcpy(buf, sb.data, sb.size);
        *nbytes = sb.size;
    }
    msgpack_sbuffer_destroy(&sb);
    return fits ? NULL : "out of memory";
}

static bool is_str(const msgpack_object *o, const char *s)
{
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(s) &&
           !memcmp(o->via.str.ptr, s, strlen(s));
}

static const char *take_dtype(const msgpack_object *o, char *dtype)
{
    if (o->type != MSGPACK_OBJECT_STR)
        return "schema dtype is not a string";
    if (o->via.str.size >= ZR_DTYPE_MAX || memchr(o->via.str.ptr, 0, o->via.str.size))
        return "schema dtype is not a NumPy dtype string";
    memcpy(dtype, o->via.str.ptr, o->via.str.size);
    dtype[o->via.str.size] = 0;
    return NULL;
}

static const char *take_shape(const msgpack_object *o, uint32_t *ndim, uint64_t *shape)
{
    if (o->type != MSGPACK_OBJECT_ARRAY)
        return "schema item_shape is not an array";
    if (o->via.array.size >= ZR_MAX_NDIM)
        return "schema item_shape has 64 dimensions or more";
    *ndim = o->via.array.size;
    for (uint32_t i = 0; i < *ndim; i++) {
        const msgpack_object *dim = &o->via.array.ptr[i];
        if (dim->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            return "schema item_shape holds something else than non-negative integers";
        shape[i] = dim->via.u64;
    }
    return NULL;
}

static const char *take_map(struct zri_schema *s, const msgpack_object *o)
{
    char dtype[ZR_DTYPE_MAX];
    uint64_t shape[ZR_MAX_NDIM];
    uint32_t ndim = 0;
    bool has_dtype = false, has_shape = false;
    if (o->type != MSGPACK_OBJECT_MAP)
        return "schema is not a map";
    for (uint32_t i = 0; i < o->via.map.size; i++) {
        const msgpack_object_kv *kv = &o->via.map.ptr[i];
        const char *why;
        if (is_str(&kv->key, "dtype") && !has_dtype) {
            has_dtype = true;
            why = take_dtype(&kv->val, dtype);
        } else if (is_str(&kv->key, "item_shape") && !has_shape) {
            has_shape = true;
            why = take_shape(&kv->val, &ndim, shape);
        } else {
            why = "schema has a key that is neither dtype nor item_shape, or one twice";
        }
        if (why)
            return why;
    }
    if (!has_dtype)
        return "schema has no dtype";
    return zri_schema_set(s, has_shape ? ZR_DENSE : ZR_RAGGED, dtype, ndim, shape);
}

const char *zri_schema_decode(struct zri_schema *s, const uint8_t *buf, size_t nbytes)
{
    msgpack_unpacked u;
    msgpack_unpacked_init(&u);
    size_t off = 0;
    const char *why = "schema is not valid MsgPack";
    if (msgpack_unpack_next(&u, (const char *)buf, nbytes, &off) == MSGPACK_UNPACK_SUCCESS)
        why = off == nbytes ? take_map(s, &u.data) : "schema has bytes after its map";
    msgpack_unpacked_destroy(&u);
    return why;
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
