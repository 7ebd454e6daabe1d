/* SPDX-License-Identifier: MIT
 *
 * A gather through .views/at against the engine's own, in turns on fresh random
 * plans: open, fstat, read to the end and close of one file, against zr_gather_dense into a
 * buffer that is used again.  Answers are compared before anything is timed.
 *
 *     view_reader STORE MOUNTPOINT BATCH ROUNDS
 *
 * Prints microseconds as JSON: median and spread of both, and how the goal of twice the
 * gather and 60 is met.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "zrecord.h"

enum { PATH_NBYTES = 4096, BURST = 20, PAUSE_USEC = 20000 };

struct bench {
    struct zr_reader *reader;
    struct zr_info info;
    const char *mountpoint;
    size_t batch;
    uint64_t *ids;
    uint8_t *rows, *file; /* what each way gives */
    size_t rows_nbytes, file_nbytes;
    uint64_t seed;
};

static void must(int holds, const char *what)
{
    if (holds)
        return;
    perror(what);
    exit(1);
}

static double now_usec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void plan(struct bench *b, char *path)
{
    struct zr_sampler sampler = {
        .length = b->info.length, .batch_size = b->batch, .seed = b->seed, .mode = ZR_IID};
    zr_sampler_batch(&sampler, b->seed++, b->ids);
    int n = snprintf(path, PATH_NBYTES, "%s/.views/at/", b->mountpoint);
    for (size_t i = 0; i < b->batch && n < PATH_NBYTES; i++)
        n += snprintf(path + n, (size_t)(PATH_NBYTES - n), "%s%" PRIu64, i ? "," : "", b->ids[i]);
    n += snprintf(path + n, (size_t)(PATH_NBYTES - n), ".npy");
    must(n < PATH_NBYTES, "a path of so many ids");
}

static void gather(struct bench *b)
{
    struct zr_error err;
    if (zr_gather_dense(b->reader, b->ids, b->batch, b->rows, b->rows_nbytes, &err) != ZR_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
}

static void read_file(struct bench *b, const char *path)
{
    struct stat st;
    ssize_t n;
    int fd = open(path, O_RDONLY);
    must(fd >= 0 && fstat(fd, &st) == 0, path);
    for (b->file_nbytes = 0;
         (n = read(fd, b->file + b->file_nbytes, b->rows_nbytes + 4096 - b->file_nbytes)) > 0;)
        b->file_nbytes += (size_t)n;
    must(n == 0 && b->file_nbytes == (size_t)st.st_size, path);
    close(fd);
}

static void check(struct bench *b)
{
    char path[PATH_NBYTES];
    plan(b, path);
    gather(b);
    read_file(b, path);
    size_t lead = b->file_nbytes - b->rows_nbytes;
    must(memcmp(b->file + lead, b->rows, b->rows_nbytes) == 0, "the same answer");
}

/* The threads of a gather stay awake for a moment after it, which would be the other way's
 * loss: hence bursts, and a pause before each. */
static void time_burst(struct bench *b, bool is_file, double *usec, size_t count)
{
    char path[PATH_NBYTES];
    usleep(PAUSE_USEC);
    for (size_t i = 0; i < count; i++) {
        plan(b, path);
        double start = now_usec();
        if (is_file)
            read_file(b, path);
        else
            gather(b);
        usec[i] = now_usec() - start;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double print_way(const char *name, double *usec, size_t count)
{
    qsort(usec, count, sizeof *usec, by_value);
    printf("\"%s\": {\"median_us\": %.1f, \"p10_us\": %.1f, \"p90_us\": %.1f}, ", name,
           usec[count / 2], usec[count / 10], usec[count * 9 / 10]);
    return usec[count / 2];
}

int main(int argc, char **argv)
{
    must(argc == 5, "view_reader STORE MOUNTPOINT BATCH ROUNDS");
    struct bench b = {.mountpoint = argv[2], .batch = strtoul(argv[3], NULL, 10), .seed = 1};
    size_t rounds = strtoul(argv[4], NULL, 10);
    must(zr_reader_open(&b.reader, argv[1], NULL, NULL) == ZR_OK, argv[1]);
    zr_reader_info(b.reader, &b.info);
    b.rows_nbytes = b.batch * b.info.row_nbytes;
    b.ids = malloc(b.batch * sizeof *b.ids);
    b.rows = malloc(b.rows_nbytes);
    b.file = malloc(b.rows_nbytes + 4096);
    double *gathers = malloc(rounds * sizeof *gathers), *files = malloc(rounds * sizeof *files);
    must(b.ids && b.rows && b.file && gathers && files && rounds, "memory");
    for (int i = 0; i < 20; i++)
        check(&b);
    for (size_t done = 0; done < rounds; done += BURST) {
        size_t count = rounds - done < BURST ? rounds - done : BURST;
        time_burst(&b, true, files + done, count);
        time_burst(&b, false, gathers + done, count);
    }
    printf("{\"batch\": %zu, \"rounds\": %zu, ", b.batch, rounds);
    double file = print_way("file", files, rounds), own = print_way("gather", gathers, rounds);
    printf("\"goal_us\": %.1f, \"share_of_goal\": %.2f}\n", 2 * own + 60, file / (2 * own + 60));
    zr_reader_close(b.reader);
    return 0;
}
