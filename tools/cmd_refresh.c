/* SPDX-License-Identifier: MIT
 *
 * zrecord refresh-checksums: makes the checksums of an archive fit its leaves,
 * after they were changed in place.
 */
#include <getopt.h>

#include "archives.h"

static const struct option long_options[] = {
    {"quiet", no_argument, NULL, 'q'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

static int run(int argc, char **argv)
{
    bool quiet = false;
    struct work work;
    struct zr_error err;

    for (int option; (option = getopt_long(argc, argv, "qh", long_options, NULL)) != -1;) {
        if (option == 'h')
            return show_help();
        if (option != 'q')
            return usage_hint();
        quiet = true;
    }
    int status = expect_arguments(argc, 1);
    if (status)
        return status;
    work_begin(&work, "refresh", quiet);
    work.in_place = true;
    int code = zr_archive_refresh(argv[optind], work_progress, &work, &err);
    return work_end(&work, argv[optind], code, &err);
}

const struct command cmd_refresh_checksums = {
    .name = "refresh-checksums",
    .arguments = "FILE",
    .summary = "Compute the checksums of an archive anew",
    .options =
        "For an archive whose leaves were changed in place (mode r+), before it is given to\n"
        "programs that check them, such as unzip.\n\n"
        "  -q, --quiet   no progress bar\n"
        "  -h, --help    this text\n",
    .run = run,
};
