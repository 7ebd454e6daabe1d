/* SPDX-License-Identifier: MIT
 *
 * zrecord import: makes a store from a .npy, an array of a .npz, a folder of .npy or
 * raw bytes on standard input.
 */
#include <getopt.h>
#include <string.h>

#include "archives.h"
#include "building.h"
#include "source.h"

struct request {
    const char *source, *store, *dtype, *shape;
    struct encoding encoding;
    enum shape_choice choice;
    bool quiet;
};

/* ---------------------------------------------------------------- options */

enum { OPT_DENSE = OPT_OWN, OPT_RAGGED, OPT_DTYPE, OPT_SHAPE };

static const struct option long_options[] = {ENCODING_OPTIONS,
                                             {"dense", no_argument, NULL, OPT_DENSE},
                                             {"ragged", no_argument, NULL, OPT_RAGGED},
                                             {"dtype", required_argument, NULL, OPT_DTYPE},
                                             {"shape", required_argument, NULL, OPT_SHAPE},
                                             {"quiet", no_argument, NULL, 'q'},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

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
    case OPT_DENSE:
        return take_choice(q, SHAPE_DENSE);
    case OPT_RAGGED:
        return take_choice(q, SHAPE_RAGGED);
    case OPT_DTYPE:
        q->dtype = optarg;
        return 0;
    case OPT_SHAPE:
        q->shape = optarg;
        return 0;
    case 'q':
        q->quiet = true;
        return 0;
    default:
        return encoding_take(&q->encoding, option);
    }
}

static bool is_stream(const struct request *q)
{
    return strcmp(q->source, "-") == 0;
}

static int check_request(const struct request *q)
{
    if (is_stream(q) && !(q->dtype && q->shape))
        return usage_error("standard input needs --dtype and --shape, of one record");
    if (!is_stream(q) && (q->dtype || q->shape))
        return usage_error("--dtype and --shape are for raw bytes on standard input, SOURCE -");
    return encoding_check(&q->encoding);
}

/* ---------------------------------------------------------------- work */

/* A dictionary from the file or from the source; none for the other codecs. */
static int get_dict(const struct request *q, struct source *s, void **dict, size_t *dict_nbytes)
{
    const struct encoding *e = &q->encoding;

    if (e->codec != ZR_ZSTD_DICT)
        return 0;
    return e->dict_file ? encoding_read_dict(e, dict, dict_nbytes)
                        : source_train(s, e->tier, dict, dict_nbytes);
}

static int append(struct zr_writer *w, const struct source *s, const struct batch *b)
{
    struct zr_error err;
    int code = s->ragged ? zr_writer_append_ragged(w, b->items, b->count, &err)
                         : zr_writer_append_dense(w, b->data, b->count, &err);

    return code == ZR_OK ? 0 : fail(&err);
}

static int copy_piece(struct source *s, struct building *b, uint64_t first, struct batch *batch)
{
    building_piece_begin(b);
    int status = source_fill(s, first, b->piece_nbytes, batch);
    if (!status && batch->count)
        status = append(b->writer, s, batch);
    return status ? status : building_piece_end(b);
}

static int copy_records(struct source *s, struct building *b, bool quiet, uint64_t *payload_nbytes)
{
    bool unknown = s->stream && s->data_nbytes == 0;
    struct batch batch = {0};
    struct progress bar;
    int status = 0;

    progress_begin(&bar, "import", unknown ? PROGRESS_UNKNOWN : s->data_nbytes, quiet);
    for (uint64_t id = 0; !status && id < s->record_count; id += batch.count) {
        status = copy_piece(s, b, id, &batch);
        if (batch.count == 0)
            break;
        *payload_nbytes += batch.used_nbytes;
        progress_update(&bar, *payload_nbytes);
    }
    progress_end(&bar);
    batch_release(&batch);
    return status;
}

static int write_store(const struct request *q, struct source *s, const void *dict,
                       size_t dict_nbytes, uint64_t *payload_nbytes)
{
    struct building b;
    struct zr_writer_options options = {
        .geometry = s->ragged ? ZR_RAGGED : ZR_DENSE,
        .dtype = s->npy.dtype,
        .ndim = s->ragged ? 0 : s->ndim,
        .item_shape = s->ragged ? NULL : s->shape,
        .dict = dict,
        .dict_nbytes = dict_nbytes,
    };
    int status = building_begin(&b, q->store, &q->encoding, &options);

    return status ? status : building_end(&b, copy_records(s, &b, q->quiet, payload_nbytes));
}

static int open_source(const struct request *q, struct source *s)
{
    return is_stream(q) ? source_open_stream(s, q->dtype, q->shape, q->choice == SHAPE_RAGGED)
                        : source_open(s, q->source, q->choice);
}

static int import_leaves_of(const struct request *q)
{
    const struct encoding *e = &q->encoding;
    const struct zr_writer_options options = {
        .codec = e->codec,
        .level = e->level,
        .tune = e->tune,
        .durability = e->no_sync ? ZR_NO_FSYNC : ZR_DURABLE,
    };

    if (e->codec == ZR_ZSTD_DICT)
        return usage_error("--codec zstd_dict: not for the leaves of an archive");
    if (q->choice == SHAPE_RAGGED)
        return usage_error("--ragged: the leaves of an archive are Dense");
    return import_archive(q->source, q->store, &options, q->quiet);
}

static int import(const struct request *q)
{
    void *dict = NULL;
    size_t dict_nbytes = 0;
    uint64_t payload_nbytes = 0;
    struct source s;
    int status = refuse_existing(q->store);

    if (!status && !is_stream(q) && is_archive(q->source))
        return import_leaves_of(q);
    if (!status)
        status = open_source(q, &s);
    if (status)
        return status;
    status = get_dict(q, &s, &dict, &dict_nbytes);
    if (!status)
        status = write_store(q, &s, dict, dict_nbytes, &payload_nbytes);
    zr_buffer_free(dict);
    source_close(&s);
    return status || q->quiet ? status : building_print(q->store, payload_nbytes);
}

static int run(int argc, char **argv)
{
    struct request q = {.encoding.codec = ZR_ZSTD};
    int option, status = 0;

    while (!status && (option = getopt_long(argc, argv, "qh", long_options, NULL)) != -1) {
        if (option == 'h')
            return show_help();
        status = take_option(&q, option);
    }
    if (!status)
        status = expect_arguments(argc, 2);
    if (status)
        return status;
    q.source = argv[optind];
    q.store = argv[optind + 1];
    status = check_request(&q);
    return status ? status : import(&q);
}

const struct command cmd_import = {
    .name = "import",
    .arguments = "SOURCE STORE",
    .summary = "Make a store from .npy, .npz, a folder of .npy or raw bytes",
    .options =
        "SOURCE is one .npy, each row of axis 0 a record; FILE.npz:NAME, such an array in a .npz\n"
        "(NAME may be left out when there is one); a folder of .npy, each file a record, in the\n"
        "order of their sorted names; or -, raw records in C order on standard input.  A folder\n"
        "whose arrays all have one shape becomes Dense, else Ragged; all must have one dtype.\n"
        "Hidden files are passed over, other names are left out with a note.  STORE must not\n"
        "exist.  SOURCE may also be a memmap archive whose leaves share their first dimension:\n"
        "STORE becomes a folder with one store a leaf, at its path.\n\n"
        "  --dtype DTYPE   standard input: as NumPy has it, like float32 or '>i2'\n"
        "  --shape SHAPE   standard input: of one record, like 3,224,224; () for scalars\n"
        "  --codec CODEC   raw, zstd (default) or zstd_dict\n" ENCODING_HELP
        "  --dense         a Dense store, or fail\n"
        "  --ragged        a Ragged store\n"
        "  --no-sync       do not wait for the disk at the end\n"
        "  -q, --quiet     no progress bar, no closing line\n"
        "  -h, --help      this text\n",
    .run = run,
};
