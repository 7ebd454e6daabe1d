/* SPDX-License-Identifier: MIT
 *
 * zrecord recode: the records of a store in a new store, encoded otherwise.  Records
 * are compared with their checksums when they are read, and the new store with the
 * old one, record by record, before it counts as made.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "building.h"

#define IDS_AT_ONCE 16384

struct request {
    const char *store, *target;
    struct encoding encoding;
    bool no_compare, quiet;
};

enum { OPT_NO_COMPARE = OPT_OWN };

static const struct option long_options[] = {ENCODING_OPTIONS,
                                             {"no-compare", no_argument, NULL, OPT_NO_COMPARE},
                                             {"quiet", no_argument, NULL, 'q'},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

/* Records of a store in memory. */
struct records {
    struct zr_reader *reader;
    struct zr_info info;
    uint64_t *ids;
    size_t count;
    unsigned char *data;
    size_t capacity_nbytes;
    uint64_t *offsets; /* Ragged: count + 1 */
};

struct job {
    struct records from, to;
    struct zr_item *items; /* Ragged */
    struct progress bar;
    uint64_t payload_nbytes;
};

/* ---------------------------------------------------------------- reading */

/* With pread, so that memory in use does not grow with the store. */
static int records_open(struct records *s, const char *path)
{
    const struct zr_reader_options options = {.access = ZR_ACCESS_READ, .checksums = true};
    int status = open_store(&s->reader, path, &options);

    if (status)
        return status;
    zr_reader_info(s->reader, &s->info);
    s->ids = calloc(IDS_AT_ONCE, sizeof *s->ids);
    s->offsets = calloc(IDS_AT_ONCE + 1, sizeof *s->offsets);
    return s->ids && s->offsets ? 0 : fail_nomem();
}

static void records_close(struct records *s)
{
    zr_reader_close(s->reader);
    zr_buffer_free(s->data);
    free(s->ids);
    free(s->offsets);
}

/* Chooses records from first on, of about max_nbytes in all, but at least one. */
static int choose(struct records *s, uint64_t first, size_t max_nbytes)
{
    struct zr_location loc;
    struct zr_error err;
    uint64_t nbytes = 0;

    for (s->count = 0; s->count < IDS_AT_ONCE && first < s->info.length; first++) {
        if (zr_reader_locate(s->reader, first, &loc, &err) != ZR_OK)
            return fail(&err);
        nbytes += loc.logic_nbytes;
        if (s->count && nbytes > max_nbytes)
            break;
        s->ids[s->count++] = first;
    }
    return 0;
}

static int reserve(struct records *s, size_t nbytes)
{
    if (nbytes <= s->capacity_nbytes)
        return 0;
    zr_buffer_free(s->data);
    s->data = zr_buffer_alloc(nbytes);
    s->capacity_nbytes = s->data ? nbytes : 0;
    return s->data ? 0 : fail_nomem();
}

static int read_dense(struct records *s)
{
    struct zr_error err;
    size_t nbytes = s->count * s->info.row_nbytes;
    int status = reserve(s, nbytes);

    if (status)
        return status;
    return zr_gather_dense(s->reader, s->ids, s->count, s->data, nbytes, &err) == ZR_OK
               ? 0
               : fail(&err);
}

static int read_ragged(struct records *s)
{
    struct zr_error err;

    if (zr_gather_ragged_plan(s->reader, s->ids, s->count, s->offsets, &err) != ZR_OK)
        return fail(&err);
    int status = reserve(s, s->offsets[s->count]);
    if (status)
        return status;
    return zr_gather_ragged(s->reader, s->ids, s->count, s->data, s->offsets, &err) == ZR_OK
               ? 0
               : fail(&err);
}

static int read_chosen(struct records *s)
{
    return s->info.geometry == ZR_DENSE ? read_dense(s) : read_ragged(s);
}

/* Record i of those that were read; NULL after saying why not. */
static const unsigned char *find_record(const struct records *s, size_t i, uint64_t *nbytes)
{
    struct zr_location loc;
    struct zr_error err;
    bool dense = s->info.geometry == ZR_DENSE;

    if (zr_reader_locate(s->reader, s->ids[i], &loc, &err) != ZR_OK) {
        fail(&err);
        return NULL;
    }
    *nbytes = loc.logic_nbytes;
    return s->data + (dense ? i * s->info.row_nbytes : s->offsets[i]);
}

/* ---------------------------------------------------------------- copying */

static int append_dense(struct job *j, struct building *b)
{
    struct zr_error err;

    j->payload_nbytes += j->from.count * j->from.info.row_nbytes;
    return zr_writer_append_dense(b->writer, j->from.data, j->from.count, &err) == ZR_OK
               ? 0
               : fail(&err);
}

static int append_ragged(struct job *j, struct building *b)
{
    struct zr_error err;
    struct zr_record_view view;
    uint64_t nbytes;

    for (size_t i = 0; i < j->from.count; i++) {
        const unsigned char *data = find_record(&j->from, i, &nbytes);
        if (!data)
            return EXIT_FAILED;
        zr_record_split(data, nbytes, &view);
        j->items[i] = (struct zr_item){view.data, view.shape, view.ndim};
        j->payload_nbytes += view.data_nbytes;
    }
    return zr_writer_append_ragged(b->writer, j->items, j->from.count, &err) == ZR_OK ? 0
                                                                                      : fail(&err);
}

static int copy_piece(struct job *j, struct building *b, uint64_t first)
{
    building_piece_begin(b);
    int status = choose(&j->from, first, b->piece_nbytes);
    if (!status)
        status = read_chosen(&j->from);
    if (!status)
        status = j->from.info.geometry == ZR_DENSE ? append_dense(j, b) : append_ragged(j, b);
    progress_update(&j->bar, first + j->from.count);
    return status ? status : building_piece_end(b);
}

static int copy(struct job *j, struct building *b)
{
    int status = 0;

    for (uint64_t id = 0; !status && id < j->from.info.length; id += j->from.count)
        status = copy_piece(j, b, id);
    return status;
}

/* ---------------------------------------------------------------- comparing */

static int compare_piece(struct job *j, const char *target)
{
    uint64_t a_nbytes, b_nbytes;

    j->to.count = j->from.count;
    memcpy(j->to.ids, j->from.ids, j->from.count * sizeof *j->to.ids);
    if (read_chosen(&j->from) || read_chosen(&j->to))
        return EXIT_FAILED;
    for (size_t i = 0; i < j->from.count; i++) {
        const unsigned char *a = find_record(&j->from, i, &a_nbytes);
        const unsigned char *b = a ? find_record(&j->to, i, &b_nbytes) : NULL;
        if (!b)
            return EXIT_FAILED;
        if (a_nbytes != b_nbytes || memcmp(a, b, a_nbytes) != 0) {
            diag("%s: record %" PRIu64 " is not the one of %s", target, j->from.ids[i],
                 j->from.info.path);
            return EXIT_FAILED;
        }
    }
    return signals_pending() ? EXIT_FAILED : 0;
}

static int compare_all(struct job *j, const char *target, size_t piece_nbytes)
{
    uint64_t length = j->from.info.length;
    int status = records_open(&j->to, target);

    if (!status && j->to.info.length != length) {
        diag("%s: has %" PRIu64 " records, but %s %" PRIu64, target, j->to.info.length,
             j->from.info.path, length);
        status = EXIT_FAILED;
    }
    for (uint64_t id = 0; !status && id < length; id += j->from.count) {
        status = choose(&j->from, id, piece_nbytes);
        if (!status)
            status = compare_piece(j, target);
        progress_update(&j->bar, length + id + j->from.count);
    }
    records_close(&j->to);
    return status;
}

/* A store that is not what it should be does not stay. */
static int compare(struct job *j, const char *target, size_t piece_nbytes)
{
    int status = compare_all(j, target, piece_nbytes);

    if (!status)
        return 0;
    output_remove_folder(target);
    if (signals_pending())
        diag("%s: interrupted, nothing was made", target);
    return status;
}

/* ---------------------------------------------------------------- command */

/* The dictionary that is asked for, that of the store, or one trained on it. */
static int get_dict(const struct request *q, const struct records *s, void **block,
                    struct zr_writer_options *options)
{
    const struct encoding *e = &q->encoding;
    struct zr_error err;
    int status = 0;

    if (e->codec != ZR_ZSTD_DICT)
        return 0;
    if (!e->dict_file && !e->tier_given && s->info.dict) {
        options->dict = s->info.dict;
        options->dict_nbytes = s->info.dict_nbytes;
        return 0;
    }
    if (e->dict_file)
        status = encoding_read_dict(e, block, &options->dict_nbytes);
    else if (zr_dict_train_store(s->reader, e->tier, block, &options->dict_nbytes, &err) != ZR_OK)
        status = fail(&err);
    options->dict = *block;
    return status;
}

static int write_store(struct job *j, const struct request *q, struct zr_writer_options *options)
{
    struct building b;
    int status = building_begin(&b, q->target, &q->encoding, options);

    if (status)
        return status;
    progress_begin(&j->bar, "recode", j->from.info.length * (q->no_compare ? 1 : 2), q->quiet);
    status = building_end(&b, copy(j, &b));
    if (!status && !q->no_compare)
        status = compare(j, q->target, b.piece_nbytes);
    progress_end(&j->bar);
    return status;
}

static int recode_open(struct job *j, struct request *q)
{
    const struct zr_info *info = &j->from.info;
    void *block = NULL;
    struct zr_writer_options options = {.geometry = info->geometry,
                                        .dtype = info->dtype,
                                        .ndim = info->ndim,
                                        .item_shape = info->item_shape};
    if (q->encoding.codec < 0)
        q->encoding.codec = info->codec;
    int status = encoding_check(&q->encoding);
    if (!status)
        status = get_dict(q, &j->from, &block, &options);
    if (!status) {
        j->items = calloc(IDS_AT_ONCE, sizeof *j->items);
        status = j->items ? write_store(j, q, &options) : fail_nomem();
    }
    zr_buffer_free(block);
    free(j->items);
    return status;
}

static int recode(struct request *q)
{
    struct job j = {0};
    int status = refuse_existing(q->target);

    if (status)
        return status;
    status = records_open(&j.from, q->store);
    if (!status)
        status = recode_open(&j, q);
    records_close(&j.from);
    return status || q->quiet ? status : building_print(q->target, j.payload_nbytes);
}

static int take_option(struct request *q, int option)
{
    if (option == 'q')
        q->quiet = true;
    else if (option == OPT_NO_COMPARE)
        q->no_compare = true;
    else
        return encoding_take(&q->encoding, option);
    return 0;
}

static int run(int argc, char **argv)
{
    struct request q = {.encoding.codec = -1};
    int option, status = 0;

    while (!status && (option = getopt_long(argc, argv, "qh", long_options, NULL)) != -1) {
        if (option == 'h')
            return show_help();
        status = take_option(&q, option);
    }
    if (!status)
        status = expect_arguments(argc, 2);
    if (!status && q.encoding.codec >= 0)
        status = encoding_check(&q.encoding);
    if (status)
        return status;
    q.store = argv[optind];
    q.target = argv[optind + 1];
    return recode(&q);
}

const struct command cmd_recode = {
    .name = "recode",
    .arguments = "STORE NEW",
    .summary = "Make a new store of the same records, encoded otherwise",
    .options =
        "The records of STORE, in the same order, each compared with its checksum while it is\n"
        "read.  Afterwards NEW is read back and compared with STORE; it stays only if all are\n"
        "equal.  NEW must not exist, and STORE is not changed.  Needs memory for a few records\n"
        "or some 16 MiB, whatever the length.\n\n"
        "  --codec CODEC   raw, zstd or zstd_dict (default: that of STORE)\n" ENCODING_HELP
        "                  (neither: that of STORE, if it has one, else one of tier balanced)\n"
        "  --no-compare    do not read NEW back\n"
        "  --no-sync       do not wait for the disk at the end\n"
        "  -q, --quiet     no progress bar, no closing line\n"
        "  -h, --help      this text\n",
    .run = run,
};
