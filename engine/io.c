/* SPDX-License-Identifier: MIT
 *
 * The seam to the operating system: files, guarded mappings, locks, sync.
 *
 * A mapped file that is cut short, or whose disk fails, raises SIGBUS at the
 * reader.  The handler here replaces a registered mapping by zeros, marks it
 * failed, and lets the reader run on; whoever read through it asks
 * zri_file_trusted() afterwards and repeats the work with pread, which reports
 * the exact error.  Nothing is unwound, so a decoder caught in the middle keeps
 * its state sound.  All of the mapping goes at once: page by page, a large file
 * would run into the kernel's limit on mappings.
 */
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "internal.h"

/* Guards are never freed, only reused: the handler walks the list without a
 * lock while others add and remove. */
struct zri_guard {
    _Atomic uintptr_t start, end; /* start 0: free; CLAIMED: being set, covers nothing */
    _Atomic bool failed;
    _Atomic int protection; /* of the mapping, and of the zeros that take its place */
    struct zri_guard *next; /* set before it is reachable */
};

#define CLAIMED UINTPTR_MAX
/* One fault makes a huge page, 2 MiB.  With small ones, one for 4 KiB, windows are slower
 * than pwrite. */
#define FAULT_NBYTES ((size_t)64 << 10)

static _Atomic(struct zri_guard *) guards;
static pthread_once_t handler_once = PTHREAD_ONCE_INIT;
static struct sigaction previous;

static void chain(int sig, siginfo_t *info, void *context)
{
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(sig, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(sig);
    } else {
        signal(sig, SIG_DFL); /* returning repeats the fault, which now ends the process */
    }
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    uintptr_t addr = (uintptr_t)info->si_addr;
    for (struct zri_guard *g = atomic_load(&guards); g; g = g->next) {
        uintptr_t start = atomic_load(&g->start), end = atomic_load(&g->end);
        if (!start || addr < start || addr >= end)
            continue;
        if (atomic_load(&g->start) != start) /* used again meanwhile: start and end do not belong */
            continue;
        /* Before the zeros can be seen by any thread. */
        atomic_store(&g->failed, true);
        if (mmap((void *)start, end - start, atomic_load(&g->protection),
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED) {
            errno = saved_errno;
            return;
        }
    }
    errno = saved_errno;
    chain(sig, info, context);
}

static void install_handler(void)
{
    struct sigaction sa = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, &previous);
}

static struct zri_guard *guard_add(uintptr_t start, uintptr_t end, int protection)
{
    struct zri_guard *g;
    for (g = atomic_load(&guards); g; g = g->next) {
        uintptr_t expected = 0;
        if (atomic_compare_exchange_strong(&g->start, &expected, CLAIMED))
            break;
    }
    if (!g) {
        g = calloc(1, sizeof *g);
        if (!g)
            return NULL;
        atomic_store(&g->start, CLAIMED);
        g->next = atomic_load(&guards);
        while (!atomic_compare_exchange_weak(&guards, &g->next, g))
            ;
    }
    atomic_store(&g->failed, false);
    atomic_store(&g->protection, protection);
    atomic_store(&g->end, end);
    atomic_store(&g->start, start);
    return g;
}

static void guard_remove(struct zri_guard *g)
{
    atomic_store(&g->end, 0);
    atomic_store(&g->start, 0);
}

static int open_file(struct zri_file *f, int dir_fd, const char *name, int access)
{
    *f = ZRI_FILE_NONE;
    int fd = openat(dir_fd, name, access | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return errno;
    struct stat st;
    int e = fstat(fd, &st) ? errno : S_ISREG(st.st_mode) ? 0 : EINVAL;
    if (e) {
        close(fd);
        return e;
    }
    f->fd = fd;
    f->nbytes = (uint64_t)st.st_size;
    return 0;
}

int zri_file_open(struct zri_file *f, int dir_fd, const char *name)
{
    return open_file(f, dir_fd, name, O_RDONLY);
}

int zri_file_open_writable(struct zri_file *f, int dir_fd, const char *name)
{
    return open_file(f, dir_fd, name, O_RDWR);
}

int zri_file_update(struct zri_file *f)
{
    struct stat st;
    if (fstat(f->fd, &st))
        return errno;
    f->nbytes = (uint64_t)st.st_size;
    return 0;
}

static int map_file(struct zri_file *f, int protection, int flags)
{
    if (f->nbytes == 0 || f->bytes)
        return 0;
    pthread_once(&handler_once, install_handler);
    void *p = mmap(NULL, f->nbytes, protection, flags, f->fd, 0);
    if (p == MAP_FAILED)
        return errno;
    f->guard = guard_add((uintptr_t)p, (uintptr_t)p + f->nbytes, protection);
    if (!f->guard) {
        munmap(p, f->nbytes);
        return ENOMEM;
    }
    f->bytes = p;
    return 0;
}

int zri_file_map(struct zri_file *f)
{
    return map_file(f, PROT_READ, MAP_SHARED);
}

int zri_file_map_private(struct zri_file *f)
{
    /* Without NORESERVE the kernel refuses files larger than memory. */
    return map_file(f, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
}

int zri_file_map_writable(struct zri_file *f)
{
    return map_file(f, PROT_READ | PROT_WRITE, MAP_SHARED);
}

void zri_file_close(struct zri_file *f)
{
    if (f->guard) {
        guard_remove(f->guard);
        munmap((void *)(uintptr_t)f->bytes, f->nbytes);
    }
    if (f->fd >= 0)
        close(f->fd);
    *f = ZRI_FILE_NONE;
}

int zri_file_read(const struct zri_file *f, uint64_t off, void *buf, size_t nbytes)
{
    if (f->fd < 0) {
        if (off > f->nbytes || nbytes > f->nbytes - off)
            return -1;
        memcpy(buf, f->bytes + off, nbytes);
        return 0;
    }
    for (size_t done = 0; done < nbytes;) {
        ssize_t n = pread(f->fd, (char *)buf + done, nbytes - done, (off_t)(off + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

bool zri_file_mapped(const struct zri_file *f)
{
    return f->bytes && !(f->guard && atomic_load_explicit(&f->guard->failed, memory_order_relaxed));
}

bool zri_file_trusted(const struct zri_file *f)
{
    if (!f->guard)
        return true;
    /* A cut inside a page shows as zeros without any signal, hence the size, for which a
     * seek needs half the time of fstat.  Nobody reads from the position. */
    return !atomic_load(&f->guard->failed) && lseek(f->fd, 0, SEEK_END) >= (off_t)f->nbytes;
}

int zri_write_full(int fd, const void *buf, size_t nbytes, uint64_t off)
{
    for (size_t done = 0; done < nbytes;) {
        ssize_t n = pwrite(fd, (const char *)buf + done, nbytes - done, (off_t)(off + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            return EIO;
        done += (size_t)n;
    }
    return 0;
}

int zri_preallocate(int fd, uint64_t off, uint64_t nbytes, bool *reserved)
{
    int e;
    do
        e = fallocate(fd, 0, (off_t)off, (off_t)nbytes) ? errno : 0;
    while (e == EINTR);
    if (reserved)
        *reserved = e == 0;
    return e == EOPNOTSUPP || e == ENOSYS || e == EINVAL ? 0 : e;
}

/* ---------------------------------------------------------------- windows */

bool zri_suits_windows(int fd)
{
    struct statfs fs;
    /* They hold to what they reserved, and have huge pages (ext4 since Linux 6.16). */
    return fstatfs(fd, &fs) == 0 && (fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == XFS_SUPER_MAGIC);
}

static uint64_t fault_count(void)
{
    struct rusage u;
    return getrusage(RUSAGE_THREAD, &u) ? 0 : (uint64_t)u.ru_minflt + (uint64_t)u.ru_majflt;
}

/* The pages are made first, which tells of a full disk by an errno.  They can still be
 * taken back for writing out, and the disk fail when they are touched again: hence the
 * guard. */
int zri_window_open(struct zri_window *v, int fd, uint64_t off, size_t nbytes)
{
    *v = (struct zri_window){.nbytes = nbytes};
    pthread_once(&handler_once, install_handler);
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)off);
    if (p == MAP_FAILED)
        return errno;
    v->bytes = p;
    uint64_t faults = fault_count();
    madvise(p, nbytes, MADV_HUGEPAGE);
    madvise(p, nbytes, MADV_RANDOM); /* else pages behind these are made, too */
    int e = madvise(p, nbytes, MADV_POPULATE_WRITE) ? errno : 0;
    v->is_quick = !e && fault_count() - faults <= nbytes / FAULT_NBYTES;
    if (!e)
        v->guard = guard_add((uintptr_t)p, (uintptr_t)p + nbytes, PROT_READ | PROT_WRITE);
    if (!e && !v->guard)
        e = ENOMEM;
    if (e)
        zri_window_close(v);
    return e;
}

int zri_window_close(struct zri_window *v)
{
    int e = v->guard && atomic_load(&v->guard->failed) ? EIO : 0;
    if (v->guard)
        guard_remove(v->guard);
    if (v->bytes)
        munmap(v->bytes, v->nbytes);
    *v = (struct zri_window){0};
    return e;
}

/* ---------------------------------------------------------------- locks and folders */

int zri_lock(int fd, bool exclusive)
{
    int e;
    do
        e = flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) ? errno : 0;
    while (e == EINTR);
    return e == EOPNOTSUPP || e == ENOSYS || e == ENOLCK || e == EBADF || e == EINVAL ? 0 : e;
}

void zri_unlock(int fd)
{
    flock(fd, LOCK_UN);
}

int zri_sync_dir(int dir_fd)
{
    /* Some filesystems cannot sync a directory and say EINVAL. */
    return fsync(dir_fd) && errno != EINVAL && errno != EROFS ? errno : 0;
}

void zri_clear_dir(int dir_fd)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *d; (d = readdir(dir));)
        if (strcmp(d->d_name, ".") && strcmp(d->d_name, ".."))
            unlinkat(dir_fd, d->d_name, 0);
    closedir(dir);
}
