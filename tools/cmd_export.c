/* SPDX-License-Identifier: MIT
 *
 * zrecord export: a store back into a .npy, or into a folder of one .npy a record.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools.h"

#define PIECE_NBYTES ((uint64_t)16 << 20)
#define IDS_AT_ONCE 4096

static const struct option long_options[] = {{"records", required_argument, NULL, 'r'},
                                             {"quiet", no_argument, NULL, 'q'},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

struct job {
    const char *store;
    struct zr_reader *reader;
    struct zr_info info;
    struct selection records;
    struct output out;
    struct progress bar;
    uint64_t done; /* records */
};

/* Called after each step: draws the bar, and fails when a signal came. */
static int step(struct job *j, uint64_t records)
{
    j->done += records;
    progress_update(&j->bar, j->done);
    if (!signals_pending())
        return 0;
    diag("%s: interrupted, nothing was made", j->out.target);
    return EXIT_FAILED;
}

/* ---------------------------------------------------------------- one .npy */

static int write_header(struct job *j)
{
    unsigned char header[ZR_NPY_MAX_HEADER_NBYTES];
    uint64_t shape[ZR_MAX_NDIM];
    const struct zr_info *info = &j->info;

    shape[0] = j->records.count;
    if (info->ndim)
        memcpy(shape + 1, info->item_shape, info->ndim * sizeof *shape);
    size_t nbytes = zr_npy_header(info->dtype, info->ndim + 1, shape, header);
    /* A disk that is too full says so now; elsewhere this is only faster. */
    uint64_t total = nbytes + j->records.count * info->row_nbytes;
    if (fallocate(j->out.fd, 0, 0, (off_t)total) != 0 && errno == ENOSPC)
        return fail_errno(j->out.target);
    return write_all(j->out.fd, header, nbytes) ? 0 : fail_errno(j->out.target);
}

static int write_rows(struct job *j, const uint64_t *ids, size_t count, void *rows)
{
    struct zr_error err;
    uint64_t nbytes = count * j->info.row_nbytes;

    if (zr_gather_dense(j->reader, ids, count, rows, nbytes, &err) != ZR_OK)
        return fail(&err);
    if (!write_all(j->out.fd, rows, nbytes))
        return fail_errno(j->out.target);
    return step(j, count);
}

static int write_array(struct job *j)
{
    uint64_t ids[IDS_AT_ONCE];
    uint64_t at_once = PIECE_NBYTES / j->info.row_nbytes;
    size_t count;

    if (at_once == 0)
        at_once = 1;
    if (at_once > IDS_AT_ONCE)
        at_once = IDS_AT_ONCE;
    void *rows = zr_buffer_alloc(at_once * j->info.row_nbytes);
    if (!rows)
        return fail_nomem();
    int status = write_header(j);
    while (!status && (count = selection_take(&j->records, ids, at_once)) > 0)
        status = write_rows(j, ids, count, rows);
    zr_buffer_free(rows);
    return status;
}

/* ---------------------------------------------------------------- a folder */

static int create_file(struct job *j, const char *name)
{
    int fd = openat(j->out.fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    if (fd >= 0)
        return fd;
    if (errno == EEXIST)
        diag("%s: %s: selected twice", j->store, name);
    else
        diag("%s/%s: %s", j->out.target, name, strerror(errno));
    return -1;
}

static int write_file(struct job *j, const char *name, const void *data, uint64_t nbytes)
{
    int fd = create_file(j, name);

    if (fd < 0)
        return EXIT_FAILED;
    bool good = write_all(fd, data, nbytes);
    int reason = errno;
    if (close(fd) != 0 && good) {
        good = false;
        reason = errno;
    }
    if (good)
        return 0;
    diag("%s/%s: %s", j->out.target, name, strerror(reason));
    return EXIT_FAILED;
}

static int write_record(struct job *j, uint64_t id)
{
    char name[NAME_TEXT_MAX];
    struct zr_error err;
    void *block;
    const void *npy;
    uint64_t nbytes;

    if (zr_record_npy(j->reader, id, &block, &npy, &nbytes, &err) != ZR_OK)
        return fail(&err);
    int status = write_file(j, record_name(id, j->info.length, name), npy, nbytes);
    zr_buffer_free(block);
    return status ? status : step(j, 1);
}

static int write_folder(struct job *j)
{
    uint64_t ids[IDS_AT_ONCE];
    size_t count;
    int status = 0;

    while (!status && (count = selection_take(&j->records, ids, IDS_AT_ONCE)) > 0)
        for (size_t i = 0; i < count && !status; i++)
            status = write_record(j, ids[i]);
    return status;
}

/* ---------------------------------------------------------------- command */

static bool is_npy_name(const char *path)
{
    size_t length = strlen(path);

    return length >= 4 && strcmp(path + length - 4, ".npy") == 0;
}

static int write_output(struct job *j, const char *dest, bool quiet)
{
    bool one_file = is_npy_name(dest);

    if (one_file && j->info.geometry == ZR_RAGGED) {
        diag("%s: Ragged records have different shapes: export into a folder, not a .npy",
             j->store);
        return EXIT_FAILED;
    }
    signals_catch();
    int status = output_begin(&j->out, dest, !one_file);
    if (status)
        return status;
    progress_begin(&j->bar, "export", j->records.count, quiet);
    status = one_file ? write_array(j) : write_folder(j);
    progress_end(&j->bar);
    if (!status)
        return output_publish(&j->out);
    output_discard(&j->out);
    return status;
}

static int export(struct job *j, const char *dest, bool quiet)
{
    int status = open_store(&j->reader, j->store, NULL);

    if (status)
        return status;
    zr_reader_info(j->reader, &j->info);
    status = selection_resolve(&j->records, j->store, j->info.length);
    if (!status)
        status = write_output(j, dest, quiet);
    zr_reader_close(j->reader);
    return status;
}

static int run(int argc, char **argv)
{
    const char *records = NULL;
    bool quiet = false;
    struct job j = {0};

    for (int option; (option = getopt_long(argc, argv, "qh", long_options, NULL)) != -1;) {
        switch (option) {
        case 'r':
            records = optarg;
            break;
        case 'q':
            quiet = true;
            break;
        case 'h':
            return show_help();
        default:
            return usage_hint();
        }
    }
    int status = expect_arguments(argc, 2);
    if (!status)
        status = selection_parse(&j.records, records);
    if (status)
        return status;
    j.store = argv[optind];
    status = export(&j, argv[optind + 1], quiet);
    selection_release(&j.records);
    return status;
}

const struct command cmd_export = {
    .name = "export",
    .arguments = "STORE DEST",
    .summary = "Write a store back as one .npy or a folder of .npy",
    .options = "DEST that ends in .npy becomes one array of all records (Dense stores), any other\n"
               "a folder with one .npy a record, named as in a mount.  DEST must not exist.\n\n"
               "  --records SEL   only these: 0,5,2 or 0:256 or 0:1000:10\n"
               "  -q, --quiet     no progress bar\n"
               "  -h, --help      this text\n",
    .run = run,
};
