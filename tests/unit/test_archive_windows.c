/* SPDX-License-Identifier: MIT
 *
 * Large payloads that one thread writes while another copies them into windows of
 * the file.  The calls below take the place of libc's: the first write waits until
 * the other thread was at a window, and that does what the test says.
 */
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>

#include "support.h"

#define MIB ((size_t)1 << 20)
#define NBYTES (30 * MIB) /* some whole pieces of 4 MiB */

enum { FINE, NO_MAPPING, NO_PAGES, LOST_PAGES, SMALL_PAGES };

static struct {
    bool active, meets; /* meets: a write is to wait for a window */
    int window;         /* how the windows are */
    int fallocate_errno;
    long fs_type;
    atomic_uint windows;  /* tried */
    atomic_ulong written; /* by pwrite */
} plan;

static uint8_t *bytes;

static int say(int e)
{
    errno = e;
    return -1;
}

int fstatfs(int fd, struct statfs *fs)
{
    long rc = syscall(SYS_fstatfs, fd, fs);
    if (plan.active)
        fs->f_type = plan.fs_type;
    return (int)rc;
}

int fallocate(int fd, int mode, off_t off, off_t nbytes)
{
    if (plan.active && plan.fallocate_errno)
        return say(plan.fallocate_errno);
    return plan.active ? ftruncate(fd, off + nbytes) /* any filesystem can */
                       : (int)syscall(SYS_fallocate, fd, mode, off, nbytes);
}

void *mmap(void *addr, size_t nbytes, int protection, int flags, int fd, off_t off)
{
    bool is_window = plan.active && fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE);
    if (is_window && plan.window == NO_MAPPING) {
        atomic_fetch_add(&plan.windows, 1);
        errno = ENODEV;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, addr, nbytes, protection, flags, fd, off);
}

/* Pages behind the end of an empty file. */
static void lose(void *addr, size_t nbytes)
{
    int fd = open(at("empty"), O_RDWR | O_CREAT, 0666);
    ck_assert(mmap(addr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == addr);
    close(fd);
}

int madvise(void *addr, size_t nbytes, int advice)
{
    if (!plan.active || advice != MADV_POPULATE_WRITE)
        return (int)syscall(SYS_madvise, addr, nbytes, advice);
    if (plan.window == LOST_PAGES)
        lose(addr, nbytes);
    atomic_fetch_add(&plan.windows, 1);
    return plan.window == NO_PAGES ? say(EFAULT) : 0;
}

int getrusage(int who, struct rusage *u)
{
    static atomic_long faults;
    long rc = syscall(SYS_getrusage, who, u);
    if (plan.active)
        u->ru_minflt = plan.window == SMALL_PAGES ? atomic_fetch_add(&faults, 1000) : 0;
    return (int)rc;
}

ssize_t pwrite(int fd, const void *buf, size_t nbytes, off_t off)
{
    while (plan.active && plan.meets && nbytes >= MIB && !atomic_load(&plan.windows))
        usleep(100);
    if (plan.active)
        atomic_fetch_add(&plan.written, nbytes);
    return syscall(SYS_pwrite64, fd, buf, nbytes, off);
}

static int save(const char *path, unsigned threads, struct zr_error *err)
{
    const struct zr_archive_source sources[] = {
        {.name = "meta.json", .data = "{}", .nbytes = 2},
        {.name = "x.memmap", .data = bytes, .nbytes = NBYTES, .is_payload = true},
    };
    const struct zr_archive_save_options o = {.thread_count = threads, .time_sec = 1700000000};
    return zr_archive_save(path, sources, COUNT(sources), &o, err);
}

static void prepare(void)
{
    zr_set_thread_count(2);
    bytes = malloc(NBYTES);
    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i < NBYTES; i += 8)
        memcpy(bytes + i, &(uint64_t){i * 0x9E3779B97F4A7C15u}, 8);
    ck_assert_int_eq(save(at("plain.tdz"), 1, NULL), ZR_OK);
    atomic_store(&plan.windows, 0);
    atomic_store(&plan.written, 0);
    plan.fs_type = EXT4_SUPER_MAGIC;
    plan.meets = true;
    plan.active = true;
}

static void check_same(void)
{
    size_t n, m;
    plan.active = false;
    uint8_t *a = slurp(at("plain.tdz"), &n), *b = slurp(at("a.tdz"), &m);
    ck_assert_uint_eq(n, m);
    ck_assert(memcmp(a, b, n) == 0);
    free(a);
    free(b);
    free(bytes);
}

START_TEST(windows_hold_what_writes_would)
{
    prepare();
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_le(plan.written, NBYTES - 4 * MIB + 4096);
    check_same();
}
END_TEST

/* Once: windows are not tried again after that. */
static void save_with_windows_that_fail(int how)
{
    prepare();
    plan.window = how;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_eq(plan.windows, 1);
    ck_assert_uint_ge(plan.written, NBYTES);
    check_same();
}

START_TEST(what_cannot_be_mapped_is_written)
{
    save_with_windows_that_fail(NO_MAPPING);
    save_with_windows_that_fail(NO_PAGES);
}
END_TEST

/* A disk that fails between the making of a page and the copy into it. */
START_TEST(what_a_window_loses_is_written)
{
    prepare();
    plan.window = LOST_PAGES;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_ge(plan.windows, 1);
    ck_assert_uint_ge(plan.written, NBYTES);
    check_same();
}
END_TEST

START_TEST(windows_in_small_pages_are_not_used_again)
{
    prepare();
    plan.window = SMALL_PAGES;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_eq(plan.windows, 1);
    check_same();
}
END_TEST

START_TEST(nothing_is_mapped_without_reserved_space)
{
    struct zr_error error = {0};
    prepare();
    plan.meets = false;
    plan.fallocate_errno = EOPNOTSUPP;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    plan.fallocate_errno = ENOSPC;
    ck_assert_int_eq(save(at("b.tdz"), 2, &error), ZR_E_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(error.message, "b.tdz"));
    ck_assert_uint_eq(entry_count(test_dir), 2);
    ck_assert_uint_eq(plan.windows, 0);
    check_same();
}
END_TEST

START_TEST(nothing_is_mapped_on_other_filesystems_or_by_one_thread)
{
    prepare();
    plan.meets = false;
    ck_assert_int_eq(save(at("a.tdz"), 1, NULL), ZR_OK);
    plan.fs_type = TMPFS_MAGIC;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_eq(plan.windows, 0);
    check_same();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        windows_hold_what_writes_would,
        what_cannot_be_mapped_is_written,
        what_a_window_loses_is_written,
        windows_in_small_pages_are_not_used_again,
        nothing_is_mapped_without_reserved_space,
        nothing_is_mapped_on_other_filesystems_or_by_one_thread,
    };
    return run_tests("archive_windows", tests, COUNT(tests), 120);
}
