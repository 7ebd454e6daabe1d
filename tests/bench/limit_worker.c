/* SPDX-License-Identifier: MIT
 *
 * The bare programs behind the "limit" rows, driven by backends/limit.py.
 *
 *     limit_worker gather STORE dense|ragged   answers requests on stdin until it ends
 *     limit_worker cold   STORE PREFIX OUT_NBYTES
 *                                              the same for a raw store with nothing mapped: all
 *                                              reads of a batch are queued through io_uring; shapes
 *                                              are PREFIX bytes, a batch fits into OUT_NBYTES
 *     limit_worker append STORE FILE           seconds for fallocate + write of data.zr's bytes
 *     limit_worker encode STORE FILE THREADS LEVEL [DICT_STORE]
 *                                              seconds to compress a raw store's records into FILE
 *
 * A request is four u32: op (0 time, 1 show), plans, batch, threads; then plans × batch ids u64.
 * The reply to "time" is a double for each plan, seconds; to "show" for each plan the number
 * of payload bytes u64 and these bytes, so that the caller can compare them.
 */
#include <errno.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>

#include "bare.h"

enum { OP_TIME = 0, OP_SHOW = 1, RING_ENTRIES = 256, WRITE_NBYTES = 64 << 20 };

struct request {
    uint32_t op, plans, batch, threads;
};

static struct bare_store store;

static bool read_all(void *buffer, size_t nbytes)
{
    return fread(buffer, 1, nbytes, stdin) == nbytes;
}

static void write_all(const void *buffer, size_t nbytes)
{
    if (fwrite(buffer, 1, nbytes, stdout) != nbytes)
        bare_die("stdout");
}

static void grow(void **memory, size_t *capacity, size_t nbytes)
{
    if (nbytes > *capacity) {
        free(*memory);
        *memory = bare_memory(nbytes);
        *capacity = nbytes;
    }
}

static size_t batch_nbytes(const uint64_t *ids, size_t count)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < count; i++)
        nbytes += store.table[ids[i]].logic;
    return nbytes;
}

/* ---------------------------------------------------------------- warm */

static void show(const struct bare_batch *b)
{
    size_t cut = store.codec == BARE_RAW ? 0 : store.prefix;
    uint64_t nbytes = b->place[b->count] - b->count * cut;
    write_all(&nbytes, sizeof nbytes);
    for (size_t i = 0; i < b->count; i++)
        write_all(b->out + b->place[i] + cut, b->place[i + 1] - b->place[i] - cut);
}

static void serve_warm(const struct request *r, const uint64_t *ids)
{
    static void *out;
    static size_t out_nbytes;
    struct bare_crew crew;
    struct bare_batch b = {&store, ids, r->batch, NULL, malloc((r->batch + 1) * sizeof(size_t))};
    bare_crew_start(&crew, r->threads);
    for (uint32_t i = 0; i < r->plans; i++, b.ids += r->batch) {
        grow(&out, &out_nbytes, batch_nbytes(b.ids, r->batch));
        b.out = out;
        double start = bare_now();
        bare_gather(&crew, &b);
        double seconds = bare_now() - start;
        if (r->op == OP_TIME)
            write_all(&seconds, sizeof seconds);
        else
            show(&b);
    }
    bare_crew_end(&crew);
    free(b.place);
}

/* ---------------------------------------------------------------- io_uring */

static struct {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
} ring;

static void *ring_map(size_t nbytes, off_t what)
{
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, what);
    if (p == MAP_FAILED)
        bare_die("io_uring mmap");
    return p;
}

static void ring_setup(void)
{
    struct io_uring_params p = {0};
    ring.fd = (int)syscall(__NR_io_uring_setup, RING_ENTRIES, &p);
    if (ring.fd < 0)
        bare_die("io_uring_setup");
    char *sq = ring_map(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = ring_map(p.cq_off.cqes + p.cq_entries * sizeof *ring.cqes, IORING_OFF_CQ_RING);
    ring.sqes = ring_map(p.sq_entries * sizeof *ring.sqes, (off_t)IORING_OFF_SQES);
    ring.sq_tail = (unsigned *)(sq + p.sq_off.tail);
    ring.sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
    ring.sq_array = (unsigned *)(sq + p.sq_off.array);
    ring.cq_head = (unsigned *)(cq + p.cq_off.head);
    ring.cq_tail = (unsigned *)(cq + p.cq_off.tail);
    ring.cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
    ring.cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
}

struct read_part {
    int fd;
    uint64_t off;
    uint32_t nbytes;
    void *dst;
};

static void ring_queue(const struct read_part *part, size_t number)
{
    unsigned tail = *ring.sq_tail, slot = tail & *ring.sq_mask;
    struct io_uring_sqe *sqe = &ring.sqes[slot];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = IORING_OP_READ;
    sqe->fd = part->fd;
    sqe->off = part->off;
    sqe->addr = (uint64_t)(uintptr_t)part->dst;
    sqe->len = part->nbytes;
    sqe->user_data = number;
    ring.sq_array[slot] = slot;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
}

/* Takes what has completed; what came short is left in its part, to be queued again. */
static size_t ring_reap(struct read_part *parts, size_t *again, size_t *again_count)
{
    size_t done = 0;
    unsigned head = *ring.cq_head;
    for (; head != __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE); head++) {
        const struct io_uring_cqe *cqe = &ring.cqes[head & *ring.cq_mask];
        struct read_part *part = &parts[cqe->user_data];
        if (cqe->res <= 0) {
            errno = cqe->res ? -cqe->res : EIO;
            bare_die("io_uring read");
        }
        part->off += (uint32_t)cqe->res;
        part->nbytes -= (uint32_t)cqe->res;
        part->dst = (char *)part->dst + cqe->res;
        if (part->nbytes)
            again[(*again_count)++] = cqe->user_data;
        else
            done++;
    }
    __atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
    return done;
}

static void read_parts(struct read_part *parts, size_t count)
{
    size_t again[RING_ENTRIES], again_count = 0, next = 0, done = 0, under_way = 0;
    while (done < count) {
        unsigned queued = 0;
        for (; under_way < RING_ENTRIES && (again_count || next < count); under_way++, queued++) {
            size_t number = again_count ? again[--again_count] : next++;
            ring_queue(&parts[number], number);
        }
        if (syscall(__NR_io_uring_enter, ring.fd, queued, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 &&
            errno != EINTR)
            bare_die("io_uring_enter");
        size_t repeated = again_count;
        size_t whole = ring_reap(parts, again, &again_count);
        done += whole;
        under_way -= whole + again_count - repeated;
    }
}

/* ---------------------------------------------------------------- cold
 * Raw stores only: two rounds of reads, the table entries and then the payloads. */

static uint8_t *cold_out;

static void open_cold(const char *dir, size_t out_nbytes)
{
    size_t nbytes;
    store.meta_fd = bare_open_file(dir, "meta.zr", &nbytes);
    store.data_fd = bare_open_file(dir, "data.zr", &nbytes);
    ring_setup();
    cold_out = bare_memory(out_nbytes);
}

static void cold_gather(const uint64_t *ids, size_t count, struct bare_entry *entries,
                        struct read_part *parts, uint8_t *out)
{
    for (size_t i = 0; i < count; i++)
        parts[i] = (struct read_part){store.meta_fd, 4096 + 16 * ids[i], 16, &entries[i]};
    read_parts(parts, count);
    for (size_t i = 0; i < count; i++) {
        parts[i] = (struct read_part){store.data_fd, entries[i].off, entries[i].phys, out};
        out += entries[i].phys;
    }
    read_parts(parts, count);
}

static void serve_cold(const struct request *r, const uint64_t *ids, size_t prefix)
{
    struct bare_entry *entries = malloc(r->batch * sizeof *entries);
    struct read_part *parts = malloc(r->batch * sizeof *parts);
    for (uint32_t i = 0; i < r->plans; i++, ids += r->batch) {
        double start = bare_now();
        cold_gather(ids, r->batch, entries, parts, cold_out);
        double seconds = bare_now() - start;
        if (r->op == OP_TIME) {
            write_all(&seconds, sizeof seconds);
            continue;
        }
        uint64_t nbytes = 0;
        const uint8_t *record = cold_out;
        for (uint32_t k = 0; k < r->batch; k++)
            nbytes += entries[k].phys - prefix;
        write_all(&nbytes, sizeof nbytes);
        for (uint32_t k = 0; k < r->batch; record += entries[k++].phys)
            write_all(record + prefix, entries[k].phys - prefix);
    }
    free(entries);
    free(parts);
}

static int serve(bool cold, size_t prefix)
{
    struct request r;
    while (read_all(&r, sizeof r)) {
        size_t nbytes = (size_t)r.plans * r.batch * sizeof(uint64_t);
        uint64_t *ids = malloc(nbytes);
        if (!ids || r.threads < 1 || r.threads > BARE_MAX_THREADS || !read_all(ids, nbytes))
            return 1;
        if (cold)
            serve_cold(&r, ids, prefix);
        else
            serve_warm(&r, ids);
        fflush(stdout);
        free(ids);
    }
    return 0;
}

/* ---------------------------------------------------------------- append */

static int create_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        bare_die(path);
    return fd;
}

static void write_at(int fd, const uint8_t *from, size_t nbytes, off_t off)
{
    while (nbytes) {
        ssize_t done = pwrite(fd, from, nbytes < WRITE_NBYTES ? nbytes : WRITE_NBYTES, off);
        if (done <= 0)
            bare_die("pwrite");
        from += done;
        off += done;
        nbytes -= (size_t)done;
    }
}

static double append(const char *path)
{
    struct stat st;
    if (fstat(store.data_fd, &st))
        bare_die("fstat");
    size_t nbytes = (size_t)st.st_size;
    uint8_t *memory = bare_memory(nbytes);
    memcpy(memory, store.data, nbytes);
    int fd = create_file(path);
    double start = bare_now();
    if (posix_fallocate(fd, 0, st.st_size))
        bare_die("posix_fallocate");
    write_at(fd, memory, nbytes, 0);
    double seconds = bare_now() - start;
    close(fd);
    free(memory);
    return seconds;
}

/* All cores in the encoder: records claimed one by one, frames collected and written in pieces. */
static struct {
    const uint8_t *records;
    ZSTD_CDict *cdict;
    int level, fd;
    atomic_ullong next, frontier;
} job;

static void flush(const uint8_t *piece, size_t nbytes)
{
    write_at(job.fd, piece, nbytes, (off_t)atomic_fetch_add(&job.frontier, nbytes));
}

static void *encode_some(void *unused)
{
    enum { PIECE_NBYTES = 1 << 20, SHARE = 8 };
    size_t used = 0, capacity = PIECE_NBYTES + ZSTD_compressBound(store.table[0].logic);
    uint8_t *piece = malloc(capacity);
    ZSTD_CCtx *cctx = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(cctx, ZSTD_c_compressionLevel, job.level);
    if (job.cdict)
        ZSTD_CCtx_refCDict(cctx, job.cdict);
    for (uint64_t id; (id = atomic_fetch_add(&job.next, SHARE)) < store.length;)
        for (uint64_t end = id + SHARE; id < end && id < store.length; id++) {
            const struct bare_entry *e = &store.table[id];
            if (used + ZSTD_compressBound(e->logic) > capacity) {
                flush(piece, used);
                used = 0;
                if (ZSTD_compressBound(e->logic) > capacity)
                    piece = realloc(piece, capacity = ZSTD_compressBound(e->logic));
            }
            used +=
                ZSTD_compress2(cctx, piece + used, capacity - used, job.records + e->off, e->logic);
        }
    flush(piece, used);
    ZSTD_freeCCtx(cctx);
    free(piece);
    return unused;
}

static double encode(const char *path, unsigned threads, int level, const char *dict_store)
{
    pthread_t crew[BARE_MAX_THREADS];
    struct stat st;
    job.fd = create_file(path);
    job.level = level;
    if (fstat(store.data_fd, &st))
        bare_die("fstat");
    uint8_t *memory = bare_memory((size_t)st.st_size);
    job.records = memcpy(memory, store.data, (size_t)st.st_size);
    if (dict_store) {
        size_t nbytes;
        int fd = bare_open_file(dict_store, "dict.zr", &nbytes);
        job.cdict = ZSTD_createCDict(bare_map(fd, nbytes), nbytes, level);
    }
    double start = bare_now();
    for (unsigned i = 1; i < threads; i++)
        if (pthread_create(&crew[i], NULL, encode_some, NULL))
            bare_die("pthread_create");
    encode_some(NULL);
    for (unsigned i = 1; i < threads; i++)
        pthread_join(crew[i], NULL);
    double seconds = bare_now() - start;
    close(job.fd);
    free(memory);
    return seconds;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    const char *what = argv[1];
    if (!strcmp(what, "cold") && argc == 5) {
        open_cold(argv[2], strtoull(argv[4], NULL, 10));
        return serve(true, strtoull(argv[3], NULL, 10));
    }
    bare_open(&store, argv[2], !strcmp(argv[3], "ragged"));
    if (!strcmp(what, "gather"))
        return serve(false, store.prefix);
    if (!strcmp(what, "append"))
        return printf("%.9f\n", append(argv[3])) < 0;
    if (!strcmp(what, "encode") && argc >= 6) {
        unsigned threads = (unsigned)strtoul(argv[4], NULL, 10);
        if (threads < 1 || threads > BARE_MAX_THREADS)
            return 2;
        int level = (int)strtol(argv[5], NULL, 10);
        return printf("%.9f\n", encode(argv[3], threads, level, argc > 6 ? argv[6] : NULL)) < 0;
    }
    return 2;
}
