/* SPDX-License-Identifier: MIT
 *
 * What happens to the payload of a zip member: CRC-32 and the four methods, whole
 * buffers at a time.  Thread safe.
 */
#ifndef ZRI_ZIP_CODEC_H
#define ZRI_ZIP_CODEC_H

#include <stddef.h>
#include <stdint.h>

uint32_t zri_crc32(uint32_t crc, const void *bytes, size_t nbytes);
/* Of a's bytes followed by the b_nbytes that have CRC b. */
uint32_t zri_crc32_join(uint32_t a, uint32_t b, uint64_t b_nbytes);
/* Of nbytes zeros. */
uint32_t zri_crc32_zeros(uint64_t nbytes);

/* "stored", "deflate", "bzip2", "lzma"; NULL for methods that are not known. */
const char *zri_method_name(int method);
/* Whether stored_nbytes can hold that many by the method's best possible ratio. */
int zri_method_can_hold(int method, uint64_t stored_nbytes, uint64_t nbytes);

/* Exactly nbytes into dst; NULL, or why not (zri_out_of_memory and zri_stopped among
 * them).  The watch may be NULL; it is looked at some 10 times a second or more, except
 * for deflate, which libdeflate does in one go at 1 GB/s. */
struct zri_watch;
const char *zri_inflate(int method, const void *src, size_t stored_nbytes, void *dst, size_t nbytes,
                        struct zri_watch *watch);
/* level < 0: the method's default.  *out is released with free. */
const char *zri_deflate(int method, int level, const void *src, size_t nbytes, void **out,
                        size_t *out_nbytes, struct zri_watch *watch);

#endif
