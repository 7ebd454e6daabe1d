/* SPDX-License-Identifier: MIT
 *
 * zrecord cat: one record as a .npy on standard output, byte for byte what
 * numpy.save would have written.
 */
#include <getopt.h>
#include <unistd.h>

#include "tools.h"

static const struct option long_options[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

static int write_record(struct zr_reader *r, uint64_t id)
{
    struct zr_error err;
    void *block;
    const void *npy;
    uint64_t nbytes;
    int status = 0;

    if (zr_record_npy(r, id, &block, &npy, &nbytes, &err) != ZR_OK)
        return fail(&err);
    if (!write_all(STDOUT_FILENO, npy, nbytes))
        status = fail_errno("standard output");
    zr_buffer_free(block);
    return status;
}

static int cat(const char *path, uint64_t id)
{
    struct zr_reader *r;

    if (isatty(STDOUT_FILENO)) {
        diag("a .npy is not written to a terminal: send it to a file or a program");
        return EXIT_FAILED;
    }
    int status = open_store(&r, path, NULL);
    if (status)
        return status;
    status = write_record(r, id);
    zr_reader_close(r);
    return status;
}

static int run(int argc, char **argv)
{
    uint64_t id;

    /* '+': what follows the store is an id, even "-1", which is then refused. */
    for (int option; (option = getopt_long(argc, argv, "+h", long_options, NULL)) != -1;)
        return option == 'h' ? show_help() : usage_hint();
    int status = expect_arguments(argc, 2);
    if (status)
        return status;
    if (!parse_u64(argv[optind + 1], &id))
        return usage_error("'%s' is not a record id (0, 1, 2, ...)", argv[optind + 1]);
    return cat(argv[optind], id);
}

const struct command cmd_cat = {
    .name = "cat",
    .arguments = "STORE ID",
    .summary = "Write one record as a .npy to standard output",
    .options = "  -h, --help   this text\n",
    .run = run,
};
