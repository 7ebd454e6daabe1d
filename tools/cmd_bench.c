/* SPDX-License-Identifier: MIT
 *
 * zrecord bench: how fast random batches come out of a store.  Each batch has ids that
 * no batch had before, since a few plans used again and again would sit in a cache.
 * Output memory is allocated and released for every batch, as a program would do it.
 */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "tools.h"

#define BATCH_MAX ((uint64_t)1 << 24)
#define THREADS_MAX 4096
#define SECONDS_MAX 86400
#define CHECKED_COUNT 3      /* batches compared before anything is timed */
#define CHECKED_RECORDS 4096 /* of each, at most */

static const struct option long_options[] = {{"batch", required_argument, NULL, 'b'},
                                             {"seconds", required_argument, NULL, 's'},
                                             {"threads", required_argument, NULL, 't'},
                                             {"json", no_argument, NULL, 'j'},
                                             {"quiet", no_argument, NULL, 'q'},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

/* Latencies by their logarithm, 32 steps a doubling: percentiles within 1.6 %, in
 * memory that does not grow.  Values below STEPS have a step each; above, the highest
 * bits of a value are 32..63 and the octave says how far they were shifted. */
#define STEPS 64
#define OCTAVES 59
struct histogram {
    uint64_t counts[OCTAVES * STEPS];
    uint64_t total;
};

struct bench {
    const char *path;
    uint64_t batch_count; /* records of a batch */
    double seconds;
    int threads;
    bool json, quiet;

    struct zr_reader *reader;
    struct zr_info info;
    struct zr_sampler sampler;
    uint64_t step;
    uint64_t *ids, *offsets;

    struct histogram latency; /* ns */
    uint64_t records, nbytes, nsec;
};

/* ---------------------------------------------------------------- latencies */

static void note(struct histogram *h, uint64_t value)
{
    int octave = value < STEPS ? 0 : 58 - __builtin_clzll(value);

    h->counts[octave * STEPS + (int)(value >> octave)]++;
    h->total++;
}

/* The middle of the step that holds this share of all values. */
static double percentile(const struct histogram *h, double share)
{
    uint64_t wanted = (uint64_t)(share * (double)h->total), seen = 0;
    size_t i = 0;

    for (; i + 1 < sizeof h->counts / sizeof h->counts[0]; i++) {
        seen += h->counts[i];
        if (seen > wanted)
            break;
    }
    return ((double)(i % STEPS) + 0.5) * (double)((uint64_t)1 << i / STEPS);
}

static uint64_t now_nsec(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---------------------------------------------------------------- one batch */

/* The ids of the next step; *data is one block for zr_buffer_free. */
static int gather(struct bench *b, void **data)
{
    struct zr_error err;
    bool dense = b->info.geometry == ZR_DENSE;
    int code = ZR_OK;

    *data = NULL;
    if (!dense)
        code = zr_gather_ragged_plan(b->reader, b->ids, b->batch_count, b->offsets, &err);
    if (code != ZR_OK)
        return fail(&err);
    uint64_t nbytes = dense ? b->batch_count * b->info.row_nbytes : b->offsets[b->batch_count];
    *data = zr_buffer_alloc(nbytes);
    if (!*data)
        return fail_nomem();
    code = dense ? zr_gather_dense(b->reader, b->ids, b->batch_count, *data, nbytes, &err)
                 : zr_gather_ragged(b->reader, b->ids, b->batch_count, *data, b->offsets, &err);
    return code == ZR_OK ? 0 : fail(&err);
}

static void next_ids(struct bench *b)
{
    zr_sampler_batch(&b->sampler, b->step++, b->ids);
}

/* ---------------------------------------------------------------- checking */

/* Record i of a batch, in the form that zr_record_split makes. */
static int find_record(const struct bench *b, const unsigned char *data, size_t i,
                       struct zr_record_view *view)
{
    struct zr_location loc;
    struct zr_error err;

    if (b->info.geometry == ZR_DENSE) {
        *view = (struct zr_record_view){.ndim = b->info.ndim,
                                        .shape = b->info.item_shape,
                                        .data = data + i * b->info.row_nbytes,
                                        .data_nbytes = b->info.row_nbytes};
        return 0;
    }
    if (zr_reader_locate(b->reader, b->ids[i], &loc, &err) != ZR_OK)
        return fail(&err);
    zr_record_split(data + b->offsets[i], loc.logic_nbytes, view);
    return 0;
}

static int check_record(const struct bench *b, const unsigned char *data, size_t i)
{
    unsigned char header[ZR_NPY_MAX_HEADER_NBYTES];
    struct zr_record_view view;
    struct zr_error err;
    void *block;
    const void *npy;
    uint64_t nbytes;
    int status = find_record(b, data, i, &view);

    if (status)
        return status;
    if (zr_record_npy(b->reader, b->ids[i], &block, &npy, &nbytes, &err) != ZR_OK)
        return fail(&err);
    size_t head = zr_npy_header(b->info.dtype, view.ndim, view.shape, header);
    if (nbytes != head + view.data_nbytes || memcmp(npy, header, head) != 0 ||
        memcmp((const char *)npy + head, view.data, view.data_nbytes) != 0) {
        diag("%s: record %" PRIu64 " differs between a batch and a single read", b->path,
             b->ids[i]);
        status = EXIT_FAILED;
    }
    zr_buffer_free(block);
    return status;
}

static int check_batch(struct bench *b)
{
    size_t step = b->batch_count > CHECKED_RECORDS ? b->batch_count / CHECKED_RECORDS : 1;
    void *data;

    next_ids(b);
    int status = gather(b, &data);
    for (size_t i = 0; !status && i < b->batch_count && !signals_pending(); i += step)
        status = check_record(b, data, i);
    zr_buffer_free(data);
    return status;
}

/* ---------------------------------------------------------------- timing */

/* Decoded bytes of the batch, as zrecord info counts them. */
static uint64_t batch_nbytes(const struct bench *b)
{
    struct zr_location loc;
    uint64_t nbytes = 0;

    if (b->info.geometry == ZR_DENSE)
        return b->batch_count * b->info.row_nbytes;
    for (size_t i = 0; i < b->batch_count; i++)
        if (zr_reader_locate(b->reader, b->ids[i], &loc, NULL) == ZR_OK)
            nbytes += loc.logic_nbytes;
    return nbytes;
}

static int time_batch(struct bench *b)
{
    void *data;

    next_ids(b);
    uint64_t start = now_nsec();
    int status = gather(b, &data);
    zr_buffer_free(data);
    uint64_t taken = now_nsec() - start;
    note(&b->latency, taken);
    b->nsec += taken;
    b->records += b->batch_count;
    b->nbytes += batch_nbytes(b);
    return status;
}

static int run_for(struct bench *b, double seconds, struct progress *bar)
{
    struct timespec start;
    int status = 0;

    clock_gettime(CLOCK_MONOTONIC, &start);
    for (double passed = 0; !status && passed < seconds && !signals_pending();
         passed = seconds_since(&start)) {
        status = time_batch(b);
        progress_update(bar, (uint64_t)(passed * 1000));
    }
    return status;
}

/* Threads, contexts and output memory come into being before the clock counts. */
static int warm_up(struct bench *b, struct progress *bar)
{
    int status = run_for(b, b->seconds / 10, bar);

    memset(&b->latency, 0, sizeof b->latency);
    b->records = b->nbytes = b->nsec = 0;
    return status;
}

static int measure(struct bench *b)
{
    struct progress bar;
    int status = 0;

    for (int i = 0; !status && i < CHECKED_COUNT; i++)
        status = check_batch(b);
    progress_begin(&bar, "bench", (uint64_t)(b->seconds * 1000), b->quiet || b->json);
    if (!status)
        status = warm_up(b, &bar);
    if (!status)
        status = run_for(b, b->seconds, &bar);
    progress_end(&bar);
    if (signals_pending()) {
        diag("%s: interrupted", b->path);
        return EXIT_FAILED;
    }
    return status;
}

/* ---------------------------------------------------------------- results */

static void print_text(const struct bench *b)
{
    double seconds = (double)b->nsec / 1e9;
    char size[SIZE_TEXT_MAX];

    printf("%s: %" PRIu64 " %s records, %s; %d batches of %" PRIu64 " equal to single reads\n",
           b->path, b->info.length, zr_geometry_name(b->info.geometry),
           zr_codec_name(b->info.codec), CHECKED_COUNT, b->batch_count);
    printf("gathered      %" PRIu64 " batches, %s, in %.2f s on up to %u thread%s\n",
           b->latency.total, size_text(b->nbytes, size), seconds, zr_thread_count(),
           zr_thread_count() == 1 ? "" : "s");
    printf("records/s     %.0f\n", (double)b->records / seconds);
    printf("GB/s          %.3f\n", (double)b->nbytes / seconds / 1e9);
    printf("batch p50     %.1f us\n", percentile(&b->latency, 0.50) / 1e3);
    printf("batch p95     %.1f us\n", percentile(&b->latency, 0.95) / 1e3);
}

static int print_json(const struct bench *b)
{
    double seconds = (double)b->nsec / 1e9;
    json_t *path = json_string(b->path);
    json_t *object = json_pack(
        "{s:o, s:s, s:s, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I}", "path",
        path ? path : json_null(), "geometry", zr_geometry_name(b->info.geometry), "codec",
        zr_codec_name(b->info.codec), "length", (json_int_t)b->info.length, "batch",
        (json_int_t)b->batch_count, "threads", (json_int_t)zr_thread_count(), "seconds", seconds,
        "batches", (json_int_t)b->latency.total, "records", (json_int_t)b->records, "bytes",
        (json_int_t)b->nbytes, "records_per_second", (double)b->records / seconds,
        "bytes_per_second", (double)b->nbytes / seconds, "batch_p50_us",
        percentile(&b->latency, 0.50) / 1e3, "batch_p95_us", percentile(&b->latency, 0.95) / 1e3,
        "checked_batches", (json_int_t)CHECKED_COUNT);
    int failed = object ? json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : 0;

    if (!object)
        return fail_nomem();
    json_decref(object);
    if (failed)
        return fail_errno("standard output");
    putchar('\n');
    return 0;
}

/* ---------------------------------------------------------------- command */

static int prepare(struct bench *b)
{
    uint64_t seed;

    if (b->info.length == 0) {
        diag("%s: has no records", b->path);
        return EXIT_FAILED;
    }
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = now_nsec();
    b->sampler = (struct zr_sampler){
        .length = b->info.length, .batch_size = b->batch_count, .seed = seed, .mode = ZR_IID};
    b->ids = calloc(b->batch_count, sizeof *b->ids);
    b->offsets = calloc(b->batch_count + 1, sizeof *b->offsets);
    if (!b->ids || !b->offsets)
        return fail_nomem();
    zr_set_thread_count((unsigned)b->threads);
    return 0;
}

static int bench(struct bench *b)
{
    int status = open_store(&b->reader, b->path, NULL);

    if (status)
        return status;
    zr_reader_info(b->reader, &b->info);
    signals_catch();
    status = prepare(b);
    if (!status)
        status = measure(b);
    if (!status && b->json)
        status = print_json(b);
    else if (!status)
        print_text(b);
    free(b->ids);
    free(b->offsets);
    zr_reader_close(b->reader);
    return status;
}

/* Digits with at most one point. */
static bool parse_seconds(const char *text, double *seconds)
{
    char *end;

    if (strspn(text, "0123456789.") != strlen(text))
        return false;
    *seconds = strtod(text, &end);
    return end != text && *end == '\0' && *seconds > 0 && *seconds <= SECONDS_MAX;
}

static int take_option(struct bench *b, int option)
{
    switch (option) {
    case 'b':
        if (parse_u64(optarg, &b->batch_count) && b->batch_count > 0 && b->batch_count <= BATCH_MAX)
            return 0;
        return usage_error("--batch '%s': not 1 to %" PRIu64, optarg, BATCH_MAX);
    case 's':
        return parse_seconds(optarg, &b->seconds)
                   ? 0
                   : usage_error("--seconds '%s': not above 0 and up to %d", optarg, SECONDS_MAX);
    case 't':
        return parse_int(optarg, 1, THREADS_MAX, &b->threads)
                   ? 0
                   : usage_error("--threads '%s': not 1 to %d", optarg, THREADS_MAX);
    case 'j':
        b->json = true;
        return 0;
    case 'q':
        b->quiet = true;
        return 0;
    default:
        return usage_hint();
    }
}

static int run(int argc, char **argv)
{
    static struct bench b = {.batch_count = 256, .seconds = 3};
    int option, status = 0;

    while (!status && (option = getopt_long(argc, argv, "b:qh", long_options, NULL)) != -1) {
        if (option == 'h')
            return show_help();
        status = take_option(&b, option);
    }
    if (!status)
        status = expect_arguments(argc, 1);
    if (status)
        return status;
    b.path = argv[optind];
    return bench(&b);
}

const struct command cmd_bench = {
    .name = "bench",
    .arguments = "STORE",
    .summary = "Measure how fast random batches of a store are gathered",
    .options =
        "Every batch has fresh random ids.  A few batches are compared with single reads, then\n"
        "a tenth of the time goes by before anything counts.  What is not in the page cache\n"
        "yet is read from the disk on the way.  GB are 10^9 decoded bytes.\n\n"
        "  -b, --batch N   records of a batch (default 256)\n"
        "  --seconds S     how long (default 3)\n"
        "  --threads N     at most that many threads of a gather (default: the CPUs)\n"
        "  --json          as one JSON object\n"
        "  -q, --quiet     no progress bar\n"
        "  -h, --help      this text\n",
    .run = run,
};
