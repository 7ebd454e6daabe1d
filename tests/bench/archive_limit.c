/* SPDX-License-Identifier: MIT
 *
 * What the system alone takes for the work of an archive, nothing checked:
 *
 *     archive_limit save FILE MIB             fallocate, then write in steps
 *     archive_limit map FILE MIB              the same, while a second thread copies into windows,
 *                                             that is mappings of parts, in huge pages made before
 *     archive_limit unpack FOLDER COUNT NBYTES [THREADS]
 *                                             COUNT files of NBYTES, 20 to a folder
 *
 * Prints the seconds of the work; making its data beforehand does not count.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STEP_NBYTES ((size_t)4 << 20)
#define FILES_PER_FOLDER 20
#define MAX_THREADS 16

static struct {
    const char *path;
    char *data, *map;
    size_t nbytes, file_count;
    unsigned threads;
    int fd;
} work;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Not zeros, and not one page again and again. */
static void make_data(size_t nbytes)
{
    work.nbytes = nbytes;
    work.data = malloc(nbytes + 8);
    if (!work.data)
        die("malloc");
    for (size_t i = 0; i < nbytes; i += 8)
        memcpy(work.data + i, &(uint64_t){i * 0x9E3779B97F4A7C15u}, 8);
}

static void make_file(void)
{
    work.fd = open(work.path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (work.fd < 0 || fallocate(work.fd, 0, 0, (off_t)work.nbytes))
        die(work.path);
}

static double save(void)
{
    double start = now();
    make_file();
    for (size_t off = 0, n; off < work.nbytes; off += n) {
        n = work.nbytes - off < STEP_NBYTES ? work.nbytes - off : STEP_NBYTES;
        if (pwrite(work.fd, work.data + off, n, (off_t)off) != (ssize_t)n)
            die("pwrite");
    }
    close(work.fd);
    return now() - start;
}

static void *each(void *(*run)(void *), unsigned threads)
{
    pthread_t thread[MAX_THREADS];
    for (size_t i = 1; i < threads; i++)
        if (pthread_create(&thread[i], NULL, run, (void *)i))
            die("pthread_create");
    run(NULL);
    for (size_t i = 1; i < threads; i++)
        pthread_join(thread[i], NULL);
    return NULL;
}

static void copy_into_window(size_t off, size_t nbytes)
{
    char *map = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, work.fd, (off_t)off);
    if (map == MAP_FAILED)
        die("mmap");
    madvise(map, nbytes, MADV_HUGEPAGE);
    madvise(map, nbytes, MADV_RANDOM); /* else pages behind these are made, too */
    if (madvise(map, nbytes, MADV_POPULATE_WRITE))
        die("madvise");
    memcpy(map, work.data + off, nbytes);
    munmap(map, nbytes);
}

/* Steps, as they come: thread 0 writes, the others use windows. */
static void *write_or_copy(void *thread)
{
    static atomic_size_t next;
    for (size_t off; (off = atomic_fetch_add(&next, STEP_NBYTES)) < work.nbytes;) {
        size_t n = work.nbytes - off < STEP_NBYTES ? work.nbytes - off : STEP_NBYTES;
        if (thread)
            copy_into_window(off, n);
        else if (pwrite(work.fd, work.data + off, n, (off_t)off) != (ssize_t)n)
            die("pwrite");
    }
    return NULL;
}

static double save_with_windows(void)
{
    double start = now();
    make_file();
    each(write_or_copy, 2);
    close(work.fd);
    return now() - start;
}

/* Whole folders, every `threads`-th. */
static void *write_folders(void *first)
{
    char name[4096];
    for (size_t i = (size_t)first * FILES_PER_FOLDER; i < work.file_count;
         i += work.threads * FILES_PER_FOLDER) {
        snprintf(name, sizeof name, "%s/%zu", work.path, i);
        if (mkdir(name, 0777))
            die(name);
        int folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (size_t k = i; k < i + FILES_PER_FOLDER && k < work.file_count; k++) {
            snprintf(name, sizeof name, "%zu", k);
            int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            if (fd < 0 || write(fd, work.data, work.nbytes) != (ssize_t)work.nbytes || close(fd))
                die(name);
        }
        close(folder);
    }
    return NULL;
}

static double unpack(void)
{
    double start = now();
    if (mkdir(work.path, 0777))
        die(work.path);
    each(write_folders, work.threads);
    return now() - start;
}

int main(int argc, char **argv)
{
    bool is_unpack = argc >= 5 && !strcmp(argv[1], "unpack");
    bool is_map = argc == 4 && !strcmp(argv[1], "map");
    if (!is_unpack && !is_map && (argc != 4 || strcmp(argv[1], "save") != 0)) {
        fprintf(stderr, "usage: archive_limit save|map FILE MIB\n"
                        "       archive_limit unpack FOLDER COUNT NBYTES [THREADS]\n");
        return 2;
    }
    work.path = argv[2];
    if (is_unpack)
        work.file_count = strtoul(argv[3], NULL, 10);
    work.threads = argc > 5 ? (unsigned)strtoul(argv[5], NULL, 10) : 2;
    if (work.threads < 1 || work.threads > MAX_THREADS)
        work.threads = 2;
    make_data(is_unpack ? strtoul(argv[4], NULL, 10) : strtoul(argv[3], NULL, 10) << 20);
    printf("%.9f\n", is_unpack ? unpack() : is_map ? save_with_windows() : save());
    return 0;
}
