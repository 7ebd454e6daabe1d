/* SPDX-License-Identifier: MIT
 *
 * Files that one thread writes while another copies into windows of them.  The calls
 * below take the place of libc's: the first write waits until the other thread was at
 * a window, and that does what the test says.
 */
#ifndef WINDOWS_H
#define WINDOWS_H

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>

#include "support.h"

#define MIB ((size_t)1 << 20)

enum window { FINE, NO_MAPPING, NO_PAGES, LOST_PAGES, SMALL_PAGES };

static struct {
    bool active, meets; /* meets: a write is to wait for a window */
    enum window window; /* how the windows are */
    int fallocate_errno;
    long fs_type;
    atomic_uint windows;  /* tried */
    atomic_ulong written; /* by pwrite */
} plan;

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

/* Windows wherever a file could have them, and a write that waits for one. */
static void plan_windows(enum window how)
{
    plan.window = how;
    atomic_store(&plan.windows, 0);
    atomic_store(&plan.written, 0);
    plan.fs_type = EXT4_SUPER_MAGIC;
    plan.meets = true;
    plan.active = true;
}

#endif
