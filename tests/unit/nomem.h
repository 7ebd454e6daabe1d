/* SPDX-License-Identifier: MIT
 *
 * Memory that runs out at any allocation, of the engine or the libraries below it.
 * The allocators below take the place of libc's; they count, fail the k-th, and
 * know how many blocks live.
 */
#ifndef NOMEM_H
#define NOMEM_H

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "support.h"

#if UNDER_ASAN || UNDER_TSAN
static const bool instrumented = true;
#else
static const bool instrumented = false;
#endif

static atomic_long live_count;
static atomic_uint calls;
static unsigned fail_at, fail_until; /* calls in between fail; 0: none */

static UNUSED bool refuses(void)
{
    if (!fail_at)
        return false;
    unsigned call = atomic_fetch_add(&calls, 1) + 1;
    if (call < fail_at || call > fail_until)
        return false;
    errno = ENOMEM;
    return true;
}

#if !UNDER_ASAN && !UNDER_TSAN /* a sanitizer has its own */

#define SEEN_BY_LIBRARIES __attribute__((visibility("default")))

void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t count, size_t nbytes);
void *__libc_realloc(void *p, size_t nbytes);
void *__libc_memalign(size_t align, size_t nbytes);
void __libc_free(void *p);

static void *counted(void *p)
{
    atomic_fetch_add(&live_count, p != NULL);
    return p;
}

SEEN_BY_LIBRARIES void *malloc(size_t nbytes)
{
    return refuses() ? NULL : counted(__libc_malloc(nbytes));
}

SEEN_BY_LIBRARIES void *calloc(size_t count, size_t nbytes)
{
    return refuses() ? NULL : counted(__libc_calloc(count, nbytes));
}

SEEN_BY_LIBRARIES void *realloc(void *p, size_t nbytes)
{
    if (refuses())
        return NULL;
    void *q = __libc_realloc(p, nbytes);
    return p ? q : counted(q);
}

SEEN_BY_LIBRARIES int posix_memalign(void **out, size_t align, size_t nbytes)
{
    void *p = refuses() ? NULL : counted(__libc_memalign(align, nbytes));
    if (p)
        *out = p;
    return p ? 0 : ENOMEM;
}

SEEN_BY_LIBRARIES void free(void *p)
{
    atomic_fetch_sub(&live_count, p != NULL);
    __libc_free(p);
}

void *mmap(void *addr, size_t nbytes, int prot, int flags, int fd, off_t off)
{
    if (refuses())
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, addr, nbytes, prot, flags, fd, off);
}

#endif

static void plan_failure(unsigned first, unsigned last)
{
    atomic_store(&calls, 0);
    fail_until = last;
    fail_at = first;
}

/* Nothing idle, so that what stays is lost. */
static UNUSED long count_live(void)
{
    zr_buffer_trim(0);
    return atomic_load(&live_count);
}

#endif
