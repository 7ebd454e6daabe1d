/* SPDX-License-Identifier: MIT
 *
 * zrecord import: makes a store from a .npy or a folder of .npy.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "archives.h"
#include "source.h"

#define PIECE_MIN_NBYTES ((size_t)1 << 20)
#define PIECE_MAX_NBYTES ((size_t)16 << 20)
#define DICT_FILE_MAX_NBYTES ((size_t)16 << 20)
#define LEVEL_MIN (-131072) /* zstd's own range */
#define LEVEL_MAX 22

struct request {
    const char *source, *store;
    int codec, level, tune, tier;
    bool tier_given, no_sync, quiet;
    const char *dict_file;
    enum shape_choice choice;
};

/* ---------------------------------------------------------------- options */

enum {
    OPT_CODEC = 256,
    OPT_LEVEL,
    OPT_TUNE,
    OPT_TIER,
    OPT_DICT,
    OPT_DENSE,
    OPT_RAGGED,
    OPT_NO_SYNC
};

static const struct option long_options[] = {{"codec", required_argument, NULL, OPT_CODEC},
                                             {"level", required_argument, NULL, OPT_LEVEL},
                                             {"tune", required_argument, NULL, OPT_TUNE},
                                             {"tier", required_argument, NULL, OPT_TIER},
                                             {"dict", required_argument, NULL, OPT_DICT},
                                             {"dense", no_argument, NULL, OPT_DENSE},
                                             {"ragged", no_argument, NULL, OPT_RAGGED},
                                             {"no-sync", no_argument, NULL, OPT_NO_SYNC},
                                             {"quiet", no_argument, NULL, 'q'},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

static int take_codec(struct request *q, const char *text)
{
    q->codec = zr_codec_from_name(text);
    return q->codec >= 0 ? 0 : usage_error("--codec '%s': not raw, zstd or zstd_dict", text);
}

static int take_level(struct request *q, const char *text)
{
    if (parse_int(text, LEVEL_MIN, LEVEL_MAX, &q->level) && q->level != 0)
        return 0;
    return usage_error("--level '%s': not a zstd level (1 to %d, or negative for speed)", text,
                       LEVEL_MAX);
}

static int take_tune(struct request *q, const char *text)
{
    q->tune = zr_tune_from_name(text);
    return q->tune >= 0 ? 0 : usage_error("--tune '%s': not default, read or write", text);
}

static int take_tier(struct request *q, const char *text)
{
    q->tier = zr_tier_from_name(text);
    q->tier_given = true;
    return q->tier >= 0 ? 0 : usage_error("--tier '%s': not fast, balanced or max", text);
}

static int take_choice(struct request *q, enum shape_choice choice)
{
    if (q->choice != SHAPE_AUTO && q->choice != choice)
        return usage_error("--dense and --ragged exclude each other");
    q->choice = choice;
    return 0;
}

static int take_option(struct request *q, int option)
{
    switch (option) {
    case OPT_CODEC:
        return take_codec(q, optarg);
    case OPT_LEVEL:
        return take_level(q, optarg);
    case OPT_TUNE:
        return take_tune(q, optarg);
    case OPT_TIER:
        return take_tier(q, optarg);
    case OPT_DICT:
        q->dict_file = optarg;
        return 0;
    case OPT_DENSE:
        return take_choice(q, SHAPE_DENSE);
    case OPT_RAGGED:
        return take_choice(q, SHAPE_RAGGED);
    case OPT_NO_SYNC:
        q->no_sync = true;
        return 0;
    case 'q':
        q->quiet = true;
        return 0;
    default:
        return usage_hint();
    }
}

static int check_request(const struct request *q)
{
    if (q->codec == ZR_RAW && q->level)
        return usage_error("--level needs --codec zstd or zstd_dict");
    if (q->codec == ZR_RAW && q->tune)
        return usage_error("--tune needs --codec zstd or zstd_dict");
    if (q->codec != ZR_ZSTD_DICT && (q->tier_given || q->dict_file))
        return usage_error("--%s needs --codec zstd_dict", q->dict_file ? "dict" : "tier");
    if (q->tier_given && q->dict_file)
        return usage_error("--tier trains a dictionary, --dict brings one: give one of them");
    return 0;
}

/* ---------------------------------------------------------------- work */

/* zstd would take any bytes as a dictionary; a wrong file is far more likely. */
static int read_dict(const char *path, void **dict, size_t *dict_nbytes)
{
    static const unsigned char magic[4] = {0x37, 0xA4, 0x30, 0xEC}; /* RFC 8878 */
    int status = read_file(path, DICT_FILE_MAX_NBYTES, dict, dict_nbytes);

    if (!status && (*dict_nbytes < sizeof magic || memcmp(*dict, magic, sizeof magic) != 0)) {
        diag("%s: not a zstd dictionary (zrecord train-dict makes one)", path);
        status = EXIT_FAILED;
    }
    return status;
}

/* A dictionary from the file or from the source; none for the other codecs. */
static int get_dict(const struct request *q, struct source *s, void **dict, size_t *dict_nbytes)
{
    if (q->codec != ZR_ZSTD_DICT)
        return 0;
    return q->dict_file ? read_dict(q->dict_file, dict, dict_nbytes)
                        : source_train(s, q->tier, dict, dict_nbytes);
}

static int create_writer(const struct request *q, const struct source *s, const void *dict,
                         size_t dict_nbytes, struct zr_writer **w)
{
    struct zr_error err;
    struct zr_writer_options options = {
        .geometry = s->ragged ? ZR_RAGGED : ZR_DENSE,
        .codec = q->codec,
        .dtype = s->npy.dtype,
        .ndim = s->ragged ? 0 : s->ndim,
        .item_shape = s->ragged ? NULL : s->shape,
        .dict = dict,
        .dict_nbytes = dict_nbytes,
        .level = q->level,
        .tune = q->tune,
        .durability = q->no_sync ? ZR_NO_FSYNC : ZR_DURABLE,
    };

    return zr_writer_create(w, q->store, &options, &err) == ZR_OK ? 0 : fail(&err);
}

static int append(struct zr_writer *w, const struct source *s, const struct batch *b)
{
    struct zr_error err;
    int code = s->ragged ? zr_writer_append_ragged(w, b->items, b->count, &err)
                         : zr_writer_append_dense(w, b->data, b->count, &err);

    return code == ZR_OK ? 0 : fail(&err);
}

static double seconds_since(const struct timespec *start)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) / 1e9;
}

/* Pieces grow while they take little time, so that a signal is answered soon
 * at level 19 and raw copies still go in large steps. */
static size_t next_piece(size_t piece_nbytes, double seconds)
{
    if (seconds > 0.25 && piece_nbytes > PIECE_MIN_NBYTES)
        return piece_nbytes / 2;
    if (seconds < 0.06 && piece_nbytes < PIECE_MAX_NBYTES)
        return piece_nbytes * 2;
    return piece_nbytes;
}

static int copy_records(struct source *s, struct zr_writer *w, bool quiet)
{
    size_t piece_nbytes = PIECE_MIN_NBYTES;
    uint64_t done_nbytes = 0;
    struct batch b = {0};
    struct progress bar;
    int status = 0;

    progress_begin(&bar, "import", s->data_nbytes, quiet);
    for (uint64_t id = 0; !status && id < s->record_count; id += b.count) {
        struct timespec start;
        clock_gettime(CLOCK_MONOTONIC, &start);
        status = source_fill(s, id, piece_nbytes, &b);
        if (!status)
            status = append(w, s, &b);
        if (!status && signals_pending())
            status = EXIT_FAILED;
        done_nbytes += b.used_nbytes;
        progress_update(&bar, done_nbytes);
        piece_nbytes = next_piece(piece_nbytes, seconds_since(&start));
    }
    progress_end(&bar);
    batch_release(&b);
    return status;
}

static int write_store(const struct request *q, struct source *s, const void *dict,
                       size_t dict_nbytes)
{
    struct zr_writer *w;
    struct zr_error err;

    signals_catch();
    int status = create_writer(q, s, dict, dict_nbytes, &w);
    if (status)
        return status;
    status = copy_records(s, w, q->quiet);
    if (!status && signals_pending())
        status = EXIT_FAILED;
    if (!status)
        return zr_writer_close(w, &err) == ZR_OK ? 0 : fail(&err);
    zr_writer_abort(w);
    if (signals_pending())
        diag("%s: interrupted, nothing was made", q->store);
    return status;
}

static int print_result(const struct request *q, uint64_t payload_nbytes)
{
    char payload[SIZE_TEXT_MAX], stored[SIZE_TEXT_MAX], shape[SHAPE_TEXT_MAX];
    struct zr_reader *r;
    struct zr_info info;
    int status = open_store(&r, q->store);

    if (status)
        return status;
    zr_reader_info(r, &info);
    printf("%s: %" PRIu64 " %s records of %s%s%s, %s, %s stored in %s\n", q->store, info.length,
           zr_geometry_name(info.geometry), info.dtype, info.geometry == ZR_DENSE ? " " : "",
           info.geometry == ZR_DENSE ? shape_text(info.ndim, info.item_shape, shape) : "",
           zr_codec_name(info.codec), size_text(payload_nbytes, payload),
           size_text(info.data_nbytes, stored));
    zr_reader_close(r);
    return 0;
}

static int import_leaves_of(const struct request *q)
{
    const struct zr_writer_options options = {
        .codec = q->codec,
        .level = q->level,
        .tune = q->tune,
        .durability = q->no_sync ? ZR_NO_FSYNC : ZR_DURABLE,
    };

    if (q->codec == ZR_ZSTD_DICT)
        return usage_error("--codec zstd_dict: not for the leaves of an archive");
    if (q->choice == SHAPE_RAGGED)
        return usage_error("--ragged: the leaves of an archive are Dense");
    return import_archive(q->source, q->store, &options, q->quiet);
}

static int import(const struct request *q)
{
    void *dict = NULL;
    size_t dict_nbytes = 0;
    struct source s;
    int status = refuse_existing(q->store);

    if (!status && is_archive(q->source))
        return import_leaves_of(q);
    if (!status)
        status = source_open(&s, q->source, q->choice);
    if (status)
        return status;
    status = get_dict(q, &s, &dict, &dict_nbytes);
    if (!status)
        status = write_store(q, &s, dict, dict_nbytes);
    uint64_t payload_nbytes = s.data_nbytes;
    zr_buffer_free(dict);
    source_close(&s);
    return status || q->quiet ? status : print_result(q, payload_nbytes);
}

static int run(int argc, char **argv)
{
    struct request q = {.codec = ZR_ZSTD};
    int option, status = 0;

    while (!status && (option = getopt_long(argc, argv, "qh", long_options, NULL)) != -1) {
        if (option == 'h')
            return show_help();
        status = take_option(&q, option);
    }
    if (!status)
        status = check_request(&q);
    if (!status)
        status = expect_arguments(argc, 2);
    if (status)
        return status;
    q.source = argv[optind];
    q.store = argv[optind + 1];
    return import(&q);
}

const struct command cmd_import = {
    .name = "import",
    .arguments = "SOURCE STORE",
    .summary = "Make a store from a .npy or a folder of .npy",
    .options =
        "SOURCE is one .npy, each row of axis 0 a record, or a folder of .npy, each file a\n"
        "record, in the order of their sorted names.  A folder whose arrays all have one\n"
        "shape becomes Dense, else Ragged; all must have one dtype.  Hidden files are passed\n"
        "over, other names are left out with a note.  STORE must not exist.\n"
        "SOURCE may also be a memmap archive whose leaves share their first dimension: STORE\n"
        "becomes a folder with one store a leaf, at its path.\n\n"
        "  --codec CODEC   raw, zstd (default) or zstd_dict\n"
        "  --level N       zstd level (default 3, with a dictionary 19)\n"
        "  --tune WHAT     default, read (for many reads) or write (build fast)\n"
        "  --tier TIER     zstd_dict: train the dictionary fast, balanced (default) or max\n"
        "  --dict FILE     zstd_dict: take this dictionary, see zrecord train-dict\n"
        "  --dense         a Dense store, or fail\n"
        "  --ragged        a Ragged store\n"
        "  --no-sync       do not wait for the disk at the end\n"
        "  -q, --quiet     no progress bar, no closing line\n"
        "  -h, --help      this text\n",
    .run = run,
};
