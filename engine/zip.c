/* SPDX-License-Identifier: MIT
 *
 * The records of a zip file, read with every field bounded and written as
 * tensordict's writer leaves them.  APPNOTE 6.3.10 is the description.
 */
#include <string.h>
#include <time.h>

#include "zip.h"

#define LOCAL_MAGIC 0x04034b50
#define CENTRAL_MAGIC 0x02014b50
#define END_MAGIC 0x06054b50
#define END64_MAGIC 0x06064b50
#define LOCATOR_MAGIC 0x07064b50

#define EXTRA_ZIP64 0x0001
#define EXTRA_UNICODE_PATH 0x7075
#define EXTRA_PADDING 0x6474 /* "td" */

#define VERSION_ZIP64 45
#define HOST_UNIX 3
#define LIMIT_32 0x7fffffff /* above it, zipfile writes zip64 fields */

/* ---------------------------------------------------------------- extra blocks */

/* The block of that id, or NULL.  Bytes that do not form blocks end the search:
 * several writers leave padding there. */
static const uint8_t *find_extra(const struct zri_zip_entry *e, uint16_t id, size_t *nbytes)
{
    const uint8_t *p = e->extra, *end = p + e->extra_nbytes;
    while (end - p >= 4) {
        size_t n = zri_le16(p + 2);
        if (n > (size_t)(end - p) - 4)
            return NULL;
        if (zri_le16(p) == id) {
            *nbytes = n;
            return p + 4;
        }
        p += 4 + n;
    }
    return NULL;
}

/* Fields that overflow 32 bits stand in the zip64 block, in this order, each only
 * where its short form is all ones. */
struct wide {
    const uint8_t *p;
    size_t nbytes;
};

static bool widen(uint64_t *field, struct wide *w)
{
    if (*field != UINT32_MAX)
        return true;
    if (w->nbytes < 8)
        return false;
    *field = zri_le64(w->p);
    w->p += 8;
    w->nbytes -= 8;
    return true;
}

static const char *take_zip64(struct zri_zip_entry *e, bool central)
{
    struct wide w = {0};
    w.p = find_extra(e, EXTRA_ZIP64, &w.nbytes);
    if (!w.p)
        return NULL; /* all ones is then the number itself */
    if (!widen(&e->nbytes, &w) || !widen(&e->stored_nbytes, &w) ||
        (central && !widen(&e->header_off, &w)))
        return "its zip64 block is too short";
    return NULL;
}

/* ---------------------------------------------------------------- entries */

const char *zri_zip_central_parse(struct zri_zip_entry *e, const uint8_t *bytes, size_t nbytes,
                                  size_t *used)
{
    if (nbytes < ZRI_ZIP_CENTRAL_NBYTES)
        return "the directory is cut short";
    if (zri_le32(bytes) != CENTRAL_MAGIC)
        return "the directory holds something else than entries";
    *e = (struct zri_zip_entry){
        .host = bytes[5],
        .flags = zri_le16(bytes + 8),
        .method = zri_le16(bytes + 10),
        .dos_time = zri_le16(bytes + 12),
        .dos_date = zri_le16(bytes + 14),
        .crc = zri_le32(bytes + ZRI_ZIP_CENTRAL_CRC_OFF),
        .stored_nbytes = zri_le32(bytes + 20),
        .nbytes = zri_le32(bytes + 24),
        .name_nbytes = zri_le16(bytes + 28),
        .extra_nbytes = zri_le16(bytes + 30),
        .comment_nbytes = zri_le16(bytes + 32),
        .external_attr = zri_le32(bytes + 38),
        .header_off = zri_le32(bytes + 42),
        .name = bytes + ZRI_ZIP_CENTRAL_NBYTES,
    };
    *used = (size_t)ZRI_ZIP_CENTRAL_NBYTES + e->name_nbytes + e->extra_nbytes + e->comment_nbytes;
    if (*used > nbytes)
        return "the directory is cut short";
    e->extra = e->name + e->name_nbytes;
    return take_zip64(e, true);
}

const char *zri_zip_local_parse(struct zri_zip_entry *e, const uint8_t *bytes, size_t nbytes,
                                size_t *used)
{
    if (nbytes < ZRI_ZIP_LOCAL_NBYTES)
        return "its local header is cut short";
    if (zri_le32(bytes) != LOCAL_MAGIC)
        return "there is no local header where the directory says";
    *e = (struct zri_zip_entry){
        .flags = zri_le16(bytes + 6),
        .method = zri_le16(bytes + 8),
        .dos_time = zri_le16(bytes + 10),
        .dos_date = zri_le16(bytes + 12),
        .crc = zri_le32(bytes + ZRI_ZIP_LOCAL_CRC_OFF),
        .stored_nbytes = zri_le32(bytes + 18),
        .nbytes = zri_le32(bytes + 22),
        .name_nbytes = zri_le16(bytes + 26),
        .extra_nbytes = zri_le16(bytes + 28),
        .name = bytes + ZRI_ZIP_LOCAL_NBYTES,
    };
    *used = (size_t)ZRI_ZIP_LOCAL_NBYTES + e->name_nbytes + e->extra_nbytes;
    if (*used > nbytes)
        return "its local header is cut short";
    e->extra = e->name + e->name_nbytes;
    return take_zip64(e, false);
}

bool zri_zip_is_special(const struct zri_zip_entry *e)
{
    uint32_t type = e->external_attr >> 16 & 0170000;
    return e->host == HOST_UNIX && type && type != 0100000 && type != 0040000;
}

/* ---------------------------------------------------------------- names */

/* Code points of bytes 0x80..0xff in code page 437, the zip default. */
static const uint16_t cp437[128] = {
    0x00c7, 0x00fc, 0x00e9, 0x00e2, 0x00e4, 0x00e0, 0x00e5, 0x00e7, 0x00ea, 0x00eb, 0x00e8, 0x00ef,
    0x00ee, 0x00ec, 0x00c4, 0x00c5, 0x00c9, 0x00e6, 0x00c6, 0x00f4, 0x00f6, 0x00f2, 0x00fb, 0x00f9,
    0x00ff, 0x00d6, 0x00dc, 0x00a2, 0x00a3, 0x00a5, 0x20a7, 0x0192, 0x00e1, 0x00ed, 0x00f3, 0x00fa,
    0x00f1, 0x00d1, 0x00aa, 0x00ba, 0x00bf, 0x2310, 0x00ac, 0x00bd, 0x00bc, 0x00a1, 0x00ab, 0x00bb,
    0x2591, 0x2592, 0x2593, 0x2502, 0x2524, 0x2561, 0x2562, 0x2556, 0x2555, 0x2563, 0x2551, 0x2557,
    0x255d, 0x255c, 0x255b, 0x2510, 0x2514, 0x2534, 0x252c, 0x251c, 0x2500, 0x253c, 0x255e, 0x255f,
    0x255a, 0x2554, 0x2569, 0x2566, 0x2560, 0x2550, 0x256c, 0x2567, 0x2568, 0x2564, 0x2565, 0x2559,
    0x2558, 0x2552, 0x2553, 0x256b, 0x256a, 0x2518, 0x250c, 0x2588, 0x2584, 0x258c, 0x2590, 0x2580,
    0x03b1, 0x00df, 0x0393, 0x03c0, 0x03a3, 0x03c3, 0x00b5, 0x03c4, 0x03a6, 0x0398, 0x03a9, 0x03b4,
    0x221e, 0x03c6, 0x03b5, 0x2229, 0x2261, 0x00b1, 0x2265, 0x2264, 0x2320, 0x2321, 0x00f7, 0x2248,
    0x00b0, 0x2219, 0x00b7, 0x221a, 0x207f, 0x00b2, 0x25a0, 0x00a0};

static size_t put_utf8(uint16_t c, char *out)
{
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    out[0] = (char)(0xe0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 0x3f));
    out[2] = (char)(0x80 | (c & 0x3f));
    return 3;
}

static bool is_ascii(const uint8_t *s, size_t n)
{
    uint8_t all = 0;
    for (size_t i = 0; i < n; i++)
        all |= s[i];
    return all < 0x80;
}

/* Well-formed by Unicode's table 3-7. */
static bool is_utf8(const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint8_t c = s[i];
        size_t more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : 3;
        if (c >= 0x80 && (c < 0xc2 || c > 0xf4 || n - i <= more))
            return false;
        for (size_t k = 1; k <= more; k++)
            if ((s[i + k] & 0xc0) != 0x80)
                return false;
        if ((c == 0xe0 && s[i + 1] < 0xa0) || (c == 0xed && s[i + 1] > 0x9f) ||
            (c == 0xf0 && s[i + 1] < 0x90) || (c == 0xf4 && s[i + 1] > 0x8f))
            return false;
        i += more + 1;
    }
    return true;
}

/* Info-ZIP's block with the name in UTF-8; its CRC of the plain name is not looked
 * at, since the plain name is not used then. */
static const uint8_t *unicode_path(const struct zri_zip_entry *e, size_t *nbytes)
{
    size_t n;
    const uint8_t *p = find_extra(e, EXTRA_UNICODE_PATH, &n);
    if (!p || n <= 5 || p[0] != 1 || n - 5 > e->name_nbytes * (size_t)3 || !is_utf8(p + 5, n - 5))
        return NULL;
    *nbytes = n - 5;
    return p + 5;
}

/* To UTF-8, in out. */
static const char *decode_name(const struct zri_zip_entry *e, char *out, size_t *out_nbytes)
{
    const uint8_t *s = e->name;
    size_t n = e->name_nbytes;
    if (!is_ascii(s, n)) {
        size_t wide;
        const uint8_t *path = e->flags & ZRI_ZIP_UTF8 ? NULL : unicode_path(e, &wide);
        if (path) {
            s = path;
            n = wide;
        } else if (e->flags & ZRI_ZIP_UTF8 && !is_utf8(s, n)) {
            return "its name is not UTF-8, though it says so";
        } else if (!(e->flags & ZRI_ZIP_UTF8) && !(e->host == HOST_UNIX && is_utf8(s, n))) {
            size_t at = 0;
            for (size_t i = 0; i < n; i++)
                at += s[i] < 0x80 ? (out[at] = (char)s[i], 1)
                                  : put_utf8(cp437[s[i] - 0x80], out + at);
            *out_nbytes = at;
            return NULL;
        }
    }
    memcpy(out, s, n);
    *out_nbytes = n;
    return NULL;
}

/* NULL, or why this path may not be used below a folder. */
static const char *check_path(const char *s, size_t n)
{
    if (n == 0)
        return "its name is empty";
    if (memchr(s, 0, n))
        return "its name holds a zero byte";
    if (s[0] == '/')
        return "its name is absolute";
    for (const char *p = s, *end = s + n; p < end;) {
        const char *slash = memchr(p, '/', (size_t)(end - p));
        size_t part = (size_t)((slash ? slash : end) - p);
        if (part == 0 || (part == 1 && p[0] == '.'))
            return "its name has an empty part";
        if (part == 2 && p[0] == '.' && p[1] == '.')
            return "its name leads out of the archive ('..')";
        p += part + 1;
    }
    return NULL;
}

const char *zri_zip_name(const struct zri_zip_entry *e, char *out, size_t *out_nbytes)
{
    size_t n;
    const char *why = decode_name(e, out, &n);
    if (why)
        return why;
    size_t skip = 0;
    while (n - skip >= 2 && out[skip] == '.' && out[skip + 1] == '/')
        skip += 2;
    if (skip && skip < n)
        memmove(out, out + skip, n - skip);
    n -= skip;
    out[n] = 0;
    *out_nbytes = n;
    /* "./" alone, as `zip -r x.zip .` of some tools leaves it, is the root folder. */
    return n == 0 && skip ? NULL : check_path(out, n);
}

/* ---------------------------------------------------------------- the end */

static const char *parse_end64(struct zri_zip_end *end, const uint8_t *tail, size_t at,
                               uint64_t tail_off)
{
    const uint8_t *locator = tail + at - ZRI_ZIP_LOCATOR_NBYTES;
    uint64_t off = zri_le64(locator + 8);
    /* Bytes in front of the archive shift everything: the record ends at its locator. */
    size_t own = at - ZRI_ZIP_LOCATOR_NBYTES;
    if (off >= tail_off && off - tail_off <= own &&
        own - (off - tail_off) >= ZRI_ZIP_END64_NBYTES &&
        zri_le32(tail + (off - tail_off)) == END64_MAGIC)
        own = (size_t)(off - tail_off);
    else if (own >= ZRI_ZIP_END64_NBYTES)
        own -= ZRI_ZIP_END64_NBYTES;
    else
        return "its zip64 end is missing";
    const uint8_t *p = tail + own;
    if (zri_le32(p) != END64_MAGIC)
        return "its zip64 end is missing";
    if (zri_le32(p + 16) || zri_le32(p + 20) || zri_le64(p + 24) != zri_le64(p + 32))
        return "it is one volume of several";
    end->count = zri_le64(p + 32);
    end->dir_nbytes = zri_le64(p + 40);
    end->dir_off = zri_le64(p + 48);
    end->end_off = tail_off + own;
    return NULL;
}

static const char *parse_end_at(struct zri_zip_end *end, const uint8_t *tail, size_t at,
                                uint64_t tail_off)
{
    const uint8_t *p = tail + at;
    if (at >= ZRI_ZIP_LOCATOR_NBYTES && zri_le32(p - ZRI_ZIP_LOCATOR_NBYTES) == LOCATOR_MAGIC)
        return parse_end64(end, tail, at, tail_off);
    if (zri_le16(p + 4) || zri_le16(p + 6) || zri_le16(p + 8) != zri_le16(p + 10))
        return "it is one volume of several";
    *end = (struct zri_zip_end){.count = zri_le16(p + 10),
                                .dir_nbytes = zri_le32(p + 12),
                                .dir_off = zri_le32(p + 16),
                                .end_off = tail_off + at};
    return NULL;
}

const char *zri_zip_end_parse(struct zri_zip_end *end, const uint8_t *tail, size_t nbytes,
                              uint64_t file_nbytes)
{
    uint64_t tail_off = file_nbytes - nbytes;
    if (nbytes < ZRI_ZIP_END_NBYTES)
        return "not a zip archive (.tdz): too short";
    for (size_t at = nbytes - ZRI_ZIP_END_NBYTES + 1; at--;) {
        size_t comment = nbytes - at - ZRI_ZIP_END_NBYTES;
        if (comment > UINT16_MAX)
            break;
        if (zri_le32(tail + at) == END_MAGIC && zri_le16(tail + at + 20) == comment)
            return parse_end_at(end, tail, at, tail_off);
    }
    return "not a zip archive (.tdz), or cut short: its end record is missing";
}

/* ---------------------------------------------------------------- writing */

static uint8_t *put16(uint8_t *p, uint64_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    return p + 2;
}

static uint8_t *put32(uint8_t *p, uint64_t v)
{
    return put16(put16(p, v), v >> 16);
}

static uint8_t *put64(uint8_t *p, uint64_t v)
{
    return put32(put32(p, v), v >> 32);
}

static uint8_t *put_bytes(uint8_t *p, const void *bytes, size_t n)
{
    memcpy(p, bytes, n);
    return p + n;
}

static uint8_t *put_padding(uint8_t *p, const struct zri_zip_member *m)
{
    if (!m->padded)
        return p;
    p = put16(put16(p, EXTRA_PADDING), m->pad_nbytes);
    memset(p, 0, m->pad_nbytes);
    return p + m->pad_nbytes;
}

static size_t padding_nbytes(const struct zri_zip_member *m)
{
    return m->padded ? 4 + (size_t)m->pad_nbytes : 0;
}

static uint16_t flags_of(const struct zri_zip_member *m)
{
    uint16_t flags = m->method == ZRI_ZIP_LZMA ? ZRI_ZIP_LZMA_EOS : 0;
    return is_ascii((const uint8_t *)m->name, m->name_nbytes) ? flags : flags | ZRI_ZIP_UTF8;
}

/* zipfile's minimum by method, beside zip64. */
static uint16_t version_of(const struct zri_zip_member *m)
{
    return m->method == ZRI_ZIP_LZMA ? 63 : m->method == ZRI_ZIP_BZIP2 ? 46 : VERSION_ZIP64;
}

size_t zri_zip_local_nbytes(const struct zri_zip_member *m)
{
    return ZRI_ZIP_LOCAL_NBYTES + (size_t)m->name_nbytes + padding_nbytes(m) +
           ZRI_ZIP_LOCAL64_NBYTES;
}

void zri_zip_align(struct zri_zip_member *m, size_t align)
{
    m->padded = true;
    m->pad_nbytes = 0;
    m->pad_nbytes = (uint16_t)(-(m->header_off + zri_zip_local_nbytes(m)) % align);
}

/* Version, flags, method, time, CRC: the same in both headers. */
static uint8_t *put_common(uint8_t *p, const struct zri_zip_member *m)
{
    p = put16(put16(put16(p, version_of(m)), flags_of(m)), m->method);
    return put32(put16(put16(p, m->dos_time), m->dos_date), m->crc);
}

size_t zri_zip_local_write(const struct zri_zip_member *m, uint8_t *out)
{
    uint8_t *p = put_common(put32(out, LOCAL_MAGIC), m);
    p = put32(put32(p, UINT32_MAX), UINT32_MAX);
    p = put16(put16(p, m->name_nbytes), padding_nbytes(m) + ZRI_ZIP_LOCAL64_NBYTES);
    p = put_padding(put_bytes(p, m->name, m->name_nbytes), m);
    p = put64(put64(put16(put16(p, EXTRA_ZIP64), 16), m->nbytes), m->stored_nbytes);
    return (size_t)(p - out);
}

/* The zip64 block of a central entry holds what overflows, and nothing else. */
static size_t wide_nbytes(const struct zri_zip_member *m)
{
    bool sizes = m->nbytes > LIMIT_32 || m->stored_nbytes > LIMIT_32;
    return (sizes ? 16 : 0) + (m->header_off > LIMIT_32 ? 8 : 0);
}

size_t zri_zip_central_nbytes(const struct zri_zip_member *m)
{
    size_t wide = wide_nbytes(m);
    return ZRI_ZIP_CENTRAL_NBYTES + (size_t)m->name_nbytes + padding_nbytes(m) +
           (wide ? 4 + wide : 0);
}

static uint8_t *put_wide(uint8_t *p, const struct zri_zip_member *m)
{
    size_t wide = wide_nbytes(m);
    if (!wide)
        return p;
    p = put16(put16(p, EXTRA_ZIP64), wide);
    if (wide >= 16)
        p = put64(put64(p, m->nbytes), m->stored_nbytes);
    return m->header_off > LIMIT_32 ? put64(p, m->header_off) : p;
}

size_t zri_zip_central_write(const struct zri_zip_member *m, uint8_t *out)
{
    size_t wide = wide_nbytes(m), extra = padding_nbytes(m) + (wide ? 4 + wide : 0);
    uint8_t *p = put32(out, CENTRAL_MAGIC);
    *p++ = (uint8_t)version_of(m);
    *p++ = HOST_UNIX;
    p = put_common(p, m);
    p = put32(p, wide >= 16 ? UINT32_MAX : m->stored_nbytes);
    p = put32(p, wide >= 16 ? UINT32_MAX : m->nbytes);
    p = put16(put16(p, m->name_nbytes), extra);
    p = put16(put16(put16(p, 0), 0), 0); /* comment, disk, internal attributes */
    p = put32(p, (uint32_t)0644 << 16);
    p = put32(p, m->header_off > LIMIT_32 ? UINT32_MAX : m->header_off);
    p = put_wide(put_bytes(p, m->name, m->name_nbytes), m);
    p = put_padding(p, m);
    return (size_t)(p - out);
}

static uint8_t *put_end64(uint8_t *p, uint64_t count, uint64_t dir_off, uint64_t dir_nbytes)
{
    uint64_t end_off = dir_off + dir_nbytes;
    p = put64(put32(p, END64_MAGIC), ZRI_ZIP_END64_NBYTES - 12);
    p = put16(put16(p, VERSION_ZIP64), VERSION_ZIP64);
    p = put64(put64(put32(put32(p, 0), 0), count), count);
    p = put64(put64(p, dir_nbytes), dir_off);
    return put32(put64(put32(put32(p, LOCATOR_MAGIC), 0), end_off), 1);
}

size_t zri_zip_end_write(uint64_t count, uint64_t dir_off, uint64_t dir_nbytes, uint8_t *out)
{
    uint8_t *p = out;
    if (count > UINT16_MAX || dir_off > LIMIT_32 || dir_nbytes > LIMIT_32) {
        p = put_end64(p, count, dir_off, dir_nbytes);
        count = count < UINT16_MAX ? count : UINT16_MAX;
        dir_off = dir_off < UINT32_MAX ? dir_off : UINT32_MAX;
        dir_nbytes = dir_nbytes < UINT32_MAX ? dir_nbytes : UINT32_MAX;
    }
    p = put16(put16(put32(p, END_MAGIC), 0), 0);
    p = put32(put32(put16(put16(p, count), count), dir_nbytes), dir_off);
    p = put16(p, 0);
    return (size_t)(p - out);
}

void zri_zip_dos_time(int64_t seconds, uint16_t *dos_time, uint16_t *dos_date)
{
    time_t t = (time_t)seconds;
    struct tm tm;
    if (!localtime_r(&t, &tm) || tm.tm_year < 80)
        tm = (struct tm){.tm_year = 80, .tm_mday = 1};
    else if (tm.tm_year > 207)
        tm = (struct tm){.tm_year = 207, .tm_mon = 11, .tm_mday = 31};
    *dos_date = (uint16_t)((tm.tm_year - 80) << 9 | (tm.tm_mon + 1) << 5 | tm.tm_mday);
    *dos_time = (uint16_t)(tm.tm_hour << 11 | tm.tm_min << 5 | tm.tm_sec / 2);
}
