/* SPDX-License-Identifier: MIT
 *
 * zrecord unpack: an archive into a memmap directory.
 */
#include <getopt.h>
#include <stdio.h>

#include "archives.h"

static const struct option long_options[] = {{"sync", no_argument, NULL, 's'},
                                             {"quiet", no_argument, NULL, 'q'},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

static int run(int argc, char **argv)
{
    struct zr_archive_unpack_options o = {0};
    bool quiet = false;
    struct work work;
    struct zr_error err;

    for (int option; (option = getopt_long(argc, argv, "qh", long_options, NULL)) != -1;) {
        if (option == 'h')
            return show_help();
        if (option != 'q' && option != 's')
            return usage_hint();
        quiet |= option == 'q';
        o.durable |= option == 's';
    }
    int status = expect_arguments(argc, 2);
    if (status)
        return status;
    work_begin(&work, "unpack", quiet);
    o.progress = work_progress;
    o.progress_ctx = &work;
    int code = zr_archive_unpack(argv[optind], argv[optind + 1], &o, &err);
    return work_end(&work, argv[optind + 1], code, &err);
}

const struct command cmd_unpack = {
    .name = "unpack",
    .arguments = "FILE DIR",
    .summary = "Unpack an archive into a memmap directory",
    .options = "Every member is checked and written beside its place before the first one takes\n"
               "its name; when one cannot, all of DIR stays as it was.  Files of the same names in\n"
               "DIR are replaced, links are not followed.  DIR may not be a store.\n\n"
               "  --sync        wait for the disk\n"
               "  -q, --quiet   no progress bar\n"
               "  -h, --help    this text\n",
    .run = run,
};
