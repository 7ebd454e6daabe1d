/* SPDX-License-Identifier: MIT
 *
 * How one fuzzer input carries the four files of a store:
 *
 *     0      flags, STORE_HAS_*
 *     1..9   four little-endian u16: bytes of page, table, dictionary, sidecar
 *     9..    those, one after the other; the rest is data.zr
 *
 * The page may be given short, as its tail is padding.  Lengths past the end of
 * the input take what there is.
 */
#ifndef STORE_INPUT_H
#define STORE_INPUT_H

#include <stdint.h>

#define STORE_HAS_DATA 1 /* data.zr is there, if only empty */
#define STORE_HAS_DICT 2
#define STORE_HAS_SIDE 4
#define STORE_PAD_PAGE 8   /* zeros up to 4096 follow the page */
#define STORE_SIGN_SIDE 16 /* the sidecar's header is made to match the store */
#define STORE_CHECKSUMS 32 /* open with checksums */
#define STORE_UNMAPPED 64  /* records are read, not looked at where they lie */
#define STORE_HEAD_NBYTES 9

#endif
