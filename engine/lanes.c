/* SPDX-License-Identifier: MIT
 *
 * Chooses the inner loops of index generation: plain C everywhere, AVX2 or
 * AVX-512 where the CPU has them.  The choice is made once; it never changes a
 * number.
 */
#include "lanes.h"

#include "internal.h"

#include <stdatomic.h>

static void draw(uint64_t key, uint64_t first, uint32_t length, size_t count, uint64_t *ids)
{
    for (size_t k = 0; k < count; k++)
        ids[k] = zri_bounded(stream(key, first + k), length);
}

static void permute(const struct network *net, uint64_t first, size_t count, uint64_t base,
                    uint64_t *ids)
{
    for (size_t k = 0; k < count; k++)
        ids[k] = base + zri_network_permute(net, first + k);
}

static void feistel(const struct feistel *f, uint64_t first, size_t count, uint64_t base,
                    uint64_t *ids)
{
    for (size_t k = 0; k < count; k++)
        ids[k] = base + zri_feistel_permute(f, first + k);
}

static const struct zri_lanes plain = {"plain C", draw, permute, feistel};

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define NAMED(name) PASTE(name, LANES)
/* Positions that are walked together: they stay in the first-level cache. */
#define CHUNK 1024
#define UNROLL _Pragma("GCC unroll 4")

/* Lists the entries that are not below the length; at has room for a vector more. */
static size_t outside_avx2(const uint64_t *values, size_t count, uint64_t length, uint32_t *at)
{
    size_t found = 0;
    for (size_t k = 0; k < count; k++) { /* without a branch: it could not be predicted */
        at[found] = (uint32_t)k;
        found += values[k] >= length;
    }
    return found;
}

#define LANES avx2
#define TARGET __attribute__((target("avx2")))
#define VECTOR_NBYTES 32
#define MUL_WIDE(a, b) (u64) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define WIDEN_LOW(v) (u64) _mm256_cvtepu32_epi64(_mm256_castsi256_si128((__m256i)(v)))
#define WIDEN_HIGH(v) (u64) _mm256_cvtepu32_epi64(_mm256_extracti128_si256((__m256i)(v), 1))
#define ANY(v) (!_mm256_testz_si256((__m256i)(v), (__m256i)(v)))
#include "lanes_x86.h"

#define LANES avx512
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,popcnt")))

/* Compressed in a register, since compressing stores are slow on some CPUs. */
TARGET static size_t outside_avx512(const uint64_t *values, size_t count, uint64_t length,
                                    uint32_t *at)
{
    const __m512i lengths = _mm512_set1_epi64((long long)length), step = _mm512_set1_epi32(16);
    __m512i k_all = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    size_t found = 0;
    for (size_t k = 0; k < count; k += 16, k_all = _mm512_add_epi32(k_all, step)) {
        __mmask16 there = count - k < 16 ? (__mmask16)((1u << (count - k)) - 1) : UINT16_MAX;
        __m512i low = _mm512_maskz_loadu_epi64((__mmask8)there, values + k);
        __m512i high = _mm512_maskz_loadu_epi64((__mmask8)(there >> 8), values + k + 8);
        unsigned out = _mm512_cmpge_epu64_mask(low, lengths) |
                       (unsigned)_mm512_cmpge_epu64_mask(high, lengths) << 8;
        _mm512_storeu_si512(at + found, _mm512_maskz_compress_epi32((__mmask16)out, k_all));
        found += (size_t)__builtin_popcount(out);
    }
    return found;
}

#define VECTOR_NBYTES 64
#define MUL_WIDE(a, b) (u64) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#define WIDEN_LOW(v) (u64) _mm512_cvtepu32_epi64(_mm512_castsi512_si256((__m512i)(v)))
#define WIDEN_HIGH(v) (u64) _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64((__m512i)(v), 1))
#define ANY(v) (_mm512_test_epi64_mask((__m512i)(v), (__m512i)(v)) != 0)
#include "lanes_x86.h"

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
}

const struct zri_lanes *zri_lanes_version(unsigned i)
{
    static const struct zri_lanes avx2 = {"AVX2", draw_avx2, permute_avx2, feistel_avx2};
    static const struct zri_lanes avx512 = {"AVX-512", draw_avx512, permute_avx512, feistel_avx512};
    if (i == 0)
        return &plain;
    if (i == 1)
        return has_avx2() ? &avx2 : NULL;
    return i == 2 && has_avx512() ? &avx512 : NULL;
}
#else
const struct zri_lanes *zri_lanes_version(unsigned i)
{
    return i ? NULL : &plain;
}
#endif

static _Atomic(const struct zri_lanes *) chosen;

void zri_lanes_force(const struct zri_lanes *lanes)
{
    atomic_store(&chosen, lanes);
}

/* Two threads may choose at once: they choose the same. */
const struct zri_lanes *zri_lanes(void)
{
    const struct zri_lanes *best = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (best)
        return best;
    for (unsigned i = 0; zri_lanes_version(i); i++)
        best = zri_lanes_version(i);
    atomic_store_explicit(&chosen, best, memory_order_relaxed);
    return best;
}
