/* SPDX-License-Identifier: MIT
 *
 * Reads files the way a loader does: open, fstat, read to the end, close, in
 * random order, and prints the median cost of one in µs.
 *
 *     mount_reader [-s] [-l] [-o] [-j READERS] [-n COUNT] [-r SEED] FOLDER NAMES
 *
 * NAMES is how many files there are, named 00000000.npy and so on.  Each is read
 * at most once a run.  -s stats instead of reading, -l lists the folder first,
 * -o goes in order.  Several readers are
 * processes; then the files per second of all together is what counts.  Output:
 * one line "median_us p90_us files_per_second checksum"; the checksum is a sum
 * over all bytes, the same for the same files in any order.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_READERS = 64, BUFFER_NBYTES = 1 << 20 };

struct run {
    const char *folder;
    uint32_t *order; /* which files, in which order */
    uint32_t *nsec;  /* shared: what each cost */
    uint64_t *sums;  /* shared: a checksum for each reader */
    size_t count;
    bool stat_only;
};

static int64_t now_nsec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "mount_reader: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t sum_bytes(const unsigned char *bytes, size_t nbytes)
{
    uint64_t sum = 0, word;
    size_t i = 0;
    for (; i + sizeof word <= nbytes; i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        sum += word;
    }
    for (; i < nbytes; i++)
        sum += bytes[i];
    return sum;
}

static void read_file(const char *path, unsigned char *buffer, uint64_t *sum)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        die(path);
    off_t done = 0;
    while (done < st.st_size) {
        ssize_t got = read(fd, buffer, BUFFER_NBYTES);
        if (got <= 0)
            die(path);
        *sum += sum_bytes(buffer, (size_t)got);
        done += got;
    }
    close(fd);
}

static void read_some(const struct run *r, size_t reader, size_t readers)
{
    unsigned char *buffer = malloc(BUFFER_NBYTES);
    char path[4096];
    struct stat st;
    if (!buffer)
        die("malloc");
    memset(buffer, 0, BUFFER_NBYTES);
    for (size_t i = reader; i < r->count; i += readers) {
        snprintf(path, sizeof path, "%s/%08u.npy", r->folder, r->order[i]);
        int64_t start = now_nsec();
        if (!r->stat_only)
            read_file(path, buffer, &r->sums[reader]);
        else if (stat(path, &st) != 0)
            die(path);
        r->nsec[i] = (uint32_t)(now_nsec() - start);
    }
    free(buffer);
}

static uint64_t mix(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static uint32_t *make_order(size_t names, uint64_t seed, bool in_order)
{
    uint32_t *order = malloc(names * sizeof *order);
    if (!order)
        die("malloc");
    for (size_t i = 0; i < names; i++)
        order[i] = (uint32_t)i;
    for (size_t i = in_order ? 0 : names; i > 1; i--) {
        size_t j = mix(&seed) % i;
        uint32_t kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
    return order;
}

static void list(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir)
        die(folder);
    while (readdir(dir))
        ;
    closedir(dir);
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void *shared(size_t nbytes)
{
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    return memory;
}

static void run_readers(const struct run *r, size_t readers)
{
    pid_t pids[MAX_READERS];
    for (size_t i = 0; i < readers; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            die("fork");
        if (pids[i] == 0) {
            read_some(r, i, readers);
            _exit(0);
        }
    }
    for (size_t i = 0; i < readers; i++) {
        int status;
        if (waitpid(pids[i], &status, 0) < 0 || status != 0)
            exit(1);
    }
}

int main(int argc, char **argv)
{
    struct run r = {0};
    size_t readers = 1, limit = SIZE_MAX;
    uint64_t seed = 1;
    bool in_order = false, lists = false;
    for (int key; (key = getopt(argc, argv, "sloj:n:r:")) != -1;) {
        switch (key) {
        case 's':
            r.stat_only = true;
            break;
        case 'l':
            lists = true;
            break;
        case 'o':
            in_order = true;
            break;
        case 'j':
            readers = strtoul(optarg, NULL, 10);
            break;
        case 'n':
            limit = strtoul(optarg, NULL, 10);
            break;
        case 'r':
            seed = strtoull(optarg, NULL, 10);
            break;
        default:
            return 2;
        }
    }
    if (argc - optind != 2 || readers < 1 || readers > MAX_READERS)
        return 2;
    r.folder = argv[optind];
    size_t names = strtoul(argv[optind + 1], NULL, 10);
    r.count = names < limit ? names : limit;
    if (r.count == 0)
        return 2;
    r.order = make_order(names, seed, in_order);
    if (lists)
        list(r.folder);
    r.nsec = shared(r.count * sizeof *r.nsec);
    r.sums = shared(readers * sizeof *r.sums);

    int64_t start = now_nsec();
    run_readers(&r, readers);
    double seconds = (double)(now_nsec() - start) / 1e9;

    uint64_t sum = 0;
    for (size_t i = 0; i < readers; i++)
        sum += r.sums[i];
    qsort(r.nsec, r.count, sizeof *r.nsec, by_value);
    printf("%.2f %.2f %.0f %016llx\n", r.nsec[r.count / 2] / 1e3,
           r.nsec[r.count - 1 - r.count / 10] / 1e3, (double)r.count / seconds,
           (unsigned long long)sum);
    free(r.order);
    return 0;
}
