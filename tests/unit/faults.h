/* SPDX-License-Identifier: MIT
 *
 * System calls that fail, or are the last ones before a kill.  The calls below
 * take the place of libc's for the engine linked here; they count, and do what
 * the test says at the k-th.
 */
#ifndef FAULTS_H
#define FAULTS_H

#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "support.h"

enum fault {
    NONE,
    KILL_BEFORE,  /* the process dies instead of the call */
    KILL_HALFWAY, /* a write is torn in the middle, then it dies */
    KILL_AFTER,
    FAIL_ONCE,
    FAIL_FROM, /* this call and all after it */
    SHORT      /* every read and write moves at most 7 bytes, every other one is
                  interrupted */
};

static struct {
    enum fault fault;
    int sys_errno;
    unsigned at; /* the call, from 1 */
    atomic_uint calls;
} plan;

static UNUSED void plan_fault(enum fault fault, unsigned at_call, int sys_errno)
{
    plan.fault = fault;
    plan.sys_errno = sys_errno;
    plan.at = at_call;
    atomic_store(&plan.calls, 0);
}

/* Counts the call; true when it fails, with errno set. */
static bool enter_call(void)
{
    if (plan.fault == NONE || plan.fault == SHORT)
        return false;
    unsigned call = atomic_fetch_add(&plan.calls, 1) + 1;
    if (call == plan.at && plan.fault == KILL_BEFORE)
        kill(getpid(), SIGKILL);
    if ((plan.fault == FAIL_ONCE && call == plan.at) ||
        (plan.fault == FAIL_FROM && call >= plan.at)) {
        errno = plan.sys_errno;
        return true;
    }
    return false;
}

static long leave_call(long result)
{
    bool kills = plan.fault == KILL_AFTER || plan.fault == KILL_HALFWAY;
    if (kills && atomic_load(&plan.calls) == plan.at)
        kill(getpid(), SIGKILL);
    return result;
}

/* What close did, in order: w(rite), f(sync), r(ename). */
static char history[100];

static void remember(char what)
{
    size_t n = strlen(history);
    if (n + 1 < sizeof history)
        history[n] = what;
}

static bool is_interrupted(void)
{
    static atomic_uint turn;
    if (plan.fault != SHORT || atomic_fetch_add(&turn, 1) % 2)
        return false;
    errno = EINTR;
    return true;
}

static size_t shortened(size_t nbytes)
{
    return plan.fault == SHORT && nbytes > 7 ? 7 : nbytes;
}

ssize_t pwrite(int fd, const void *buf, size_t nbytes, off_t off)
{
    if (enter_call() || is_interrupted())
        return -1;
    remember('w');
    if (plan.fault == KILL_HALFWAY && atomic_load(&plan.calls) == plan.at)
        nbytes /= 2;
    return leave_call(syscall(SYS_pwrite64, fd, buf, shortened(nbytes), off));
}

ssize_t pread(int fd, void *buf, size_t nbytes, off_t off)
{
    if (enter_call() || is_interrupted())
        return -1;
    return leave_call(syscall(SYS_pread64, fd, buf, shortened(nbytes), off));
}

int fsync(int fd)
{
    remember('f');
    return enter_call() ? -1 : (int)leave_call(syscall(SYS_fsync, fd));
}

int fallocate(int fd, int mode, off_t off, off_t nbytes)
{
    return enter_call() ? -1 : (int)leave_call(syscall(SYS_fallocate, fd, mode, off, nbytes));
}

int mkdir(const char *path, mode_t mode)
{
    return enter_call() ? -1 : (int)leave_call(syscall(SYS_mkdir, path, mode));
}

int mkdirat(int fd, const char *path, mode_t mode)
{
    return enter_call() ? -1 : (int)leave_call(syscall(SYS_mkdirat, fd, path, mode));
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    remember('r');
    return enter_call() ? -1
                        : (int)leave_call(syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return enter_call() ? -1 : (int)leave_call(syscall(SYS_renameat2, from_fd, from, to_fd, to, 0));
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    return enter_call() ? -1
                        : (int)leave_call(syscall(SYS_linkat, from_fd, from, to_fd, to, flags));
}

int openat(int fd, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    bool is_nameless = (flags & O_TMPFILE) == O_TMPFILE;
    mode_t mode = flags & O_CREAT || is_nameless ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (!strcmp(path, ".") && !is_nameless) /* clearing up after a failure */
        return (int)syscall(SYS_openat, fd, path, flags, mode);
    return enter_call() ? -1 : (int)leave_call(syscall(SYS_openat, fd, path, flags, mode));
}

#endif
