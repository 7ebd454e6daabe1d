/* SPDX-License-Identifier: MIT
 *
 * The records of a zip file as bytes: local headers, central entries, the records
 * at the end, extra blocks, names.  Knows nothing of files or trees; every
 * function is given the bytes it may look at and says how many it took.
 */
#ifndef ZRI_ZIP_H
#define ZRI_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum zri_zip_method {
    ZRI_ZIP_STORED = 0,
    ZRI_ZIP_DEFLATE = 8,
    ZRI_ZIP_BZIP2 = 12,
    ZRI_ZIP_LZMA = 14
};

#define ZRI_ZIP_ENCRYPTED 0x0001
#define ZRI_ZIP_LZMA_EOS 0x0002 /* an end marker closes the lzma stream */
#define ZRI_ZIP_STREAMED 0x0008 /* CRC and sizes follow the payload */
#define ZRI_ZIP_STRONG 0x0040   /* strong encryption */
#define ZRI_ZIP_UTF8 0x0800
#define ZRI_ZIP_MASKED 0x2000 /* central directory encrypted */

#define ZRI_ZIP_LOCAL_NBYTES 30
#define ZRI_ZIP_CENTRAL_NBYTES 46
#define ZRI_ZIP_END_NBYTES 22
#define ZRI_ZIP_END64_NBYTES 56
#define ZRI_ZIP_LOCATOR_NBYTES 20
#define ZRI_ZIP_LOCAL64_NBYTES 20 /* the zip64 block that our local headers end with */
#define ZRI_ZIP_LOCAL_CRC_OFF 14
#define ZRI_ZIP_CENTRAL_CRC_OFF 16
#define ZRI_ZIP_NAME_MAX UINT16_MAX

/* What a local header and a central entry say of one member. */
struct zri_zip_entry {
    const uint8_t *name; /* raw, in the bytes that were parsed */
    const uint8_t *extra;
    uint16_t name_nbytes, extra_nbytes, comment_nbytes;
    uint16_t flags, method, dos_time, dos_date;
    uint32_t crc;
    uint64_t stored_nbytes, nbytes;
    uint64_t header_off;    /* central only */
    uint32_t external_attr; /* central only */
    uint8_t host;           /* central only: 3 is Unix */
};

/* NULL, or what is wrong; *used is the length of the record. */
const char *zri_zip_central_parse(struct zri_zip_entry *e, const uint8_t *bytes, size_t nbytes,
                                  size_t *used);
/* Sizes are taken from its zip64 block where they are there. */
const char *zri_zip_local_parse(struct zri_zip_entry *e, const uint8_t *bytes, size_t nbytes,
                                size_t *used);

/* The end of a zip file. */
struct zri_zip_end {
    uint64_t count;
    uint64_t dir_off, dir_nbytes; /* of the central directory, as written */
    uint64_t end_off;             /* where the records at the end begin */
};
/* tail holds the last nbytes of a file of file_nbytes. */
const char *zri_zip_end_parse(struct zri_zip_end *end, const uint8_t *tail, size_t nbytes,
                              uint64_t file_nbytes);
#define ZRI_ZIP_TAIL_NBYTES                                                                        \
    (UINT16_MAX + ZRI_ZIP_END_NBYTES + ZRI_ZIP_LOCATOR_NBYTES + ZRI_ZIP_END64_NBYTES)

/* The member's path, clean: UTF-8, no leading "./", no empty, "." or ".." part, not
 * absolute, no NUL.  out holds 3 * name_nbytes + 1; a folder keeps its last '/'.
 * NULL, or why it is refused. */
const char *zri_zip_name(const struct zri_zip_entry *e, char *out, size_t *out_nbytes);
/* Whether it is a symlink, device or other thing that is no file and no folder. */
bool zri_zip_is_special(const struct zri_zip_entry *e);

/* ---------------------------------------------------------------- writing
 * Records as tensordict's writer leaves them: made by and for version 4.5 on Unix,
 * mode 0644, sizes of local headers always in a zip64 block. */

struct zri_zip_member {
    const char *name; /* UTF-8 */
    uint16_t name_nbytes;
    uint16_t method;
    uint16_t pad_nbytes; /* zeros inside the padding block */
    bool padded;         /* there is such a block */
    uint16_t dos_time, dos_date;
    uint32_t crc;
    uint64_t nbytes, stored_nbytes;
    uint64_t header_off;
};
/* Bytes of its local header. */
size_t zri_zip_local_nbytes(const struct zri_zip_member *m);
/* Chooses pad_nbytes so that the payload starts at a multiple of align. */
void zri_zip_align(struct zri_zip_member *m, size_t align);
size_t zri_zip_local_write(const struct zri_zip_member *m, uint8_t *out);
size_t zri_zip_central_nbytes(const struct zri_zip_member *m);
size_t zri_zip_central_write(const struct zri_zip_member *m, uint8_t *out);
/* The records at the end, with their zip64 forms where needed; out holds
 * ZRI_ZIP_TAIL_NBYTES. */
size_t zri_zip_end_write(uint64_t count, uint64_t dir_off, uint64_t dir_nbytes, uint8_t *out);
/* Local time of `seconds` since the epoch, clamped to 1980..2107. */
void zri_zip_dos_time(int64_t seconds, uint16_t *dos_time, uint16_t *dos_date);

static inline uint16_t zri_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t zri_le32(const uint8_t *p)
{
    return zri_le16(p) | (uint32_t)zri_le16(p + 2) << 16;
}
static inline uint64_t zri_le64(const uint8_t *p)
{
    return zri_le32(p) | (uint64_t)zri_le32(p + 4) << 32;
}

#endif
