/* SPDX-License-Identifier: MIT
 *
 * zrecord pack: a memmap directory, or a folder of stores, into one archive.
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archives.h"

enum { OPT_COMPRESSION = 256, OPT_LEVEL, OPT_SYNC };

static const struct option long_options[] = {
    {"compression", required_argument, NULL, OPT_COMPRESSION},
    {"level", required_argument, NULL, OPT_LEVEL},
    {"sync", no_argument, NULL, OPT_SYNC},
    {"force", no_argument, NULL, 'f'},
    {"quiet", no_argument, NULL, 'q'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0}};

static int take_option(struct zr_archive_save_options *o, bool *quiet, int option)
{
    switch (option) {
    case OPT_COMPRESSION:
        o->method = optarg;
        return 0;
    case OPT_LEVEL:
        if (parse_int(optarg, 1, 12, &o->level))
            return 0;
        return usage_error("--level '%s': not 1 to 12", optarg);
    case OPT_SYNC:
        o->durable = true;
        return 0;
    case 'f':
        o->no_replace = false;
        return 0;
    case 'q':
        *quiet = true;
        return 0;
    default:
        return usage_hint();
    }
}

static int check_compression(const struct zr_archive_save_options *o)
{
    static const char *const names[] = {"stored", "deflate", "bzip2", "lzma"};

    for (size_t i = 0; o->method && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(o->method, names[i]) == 0)
            return 0;
    if (o->method)
        return usage_error("--compression '%s': not stored, deflate, bzip2 or lzma", o->method);
    return o->level ? usage_error("--level needs --compression") : 0;
}

static bool has_meta(const char *dir)
{
    char path[8192];
    int n = snprintf(path, sizeof path, "%s/meta.json", dir);

    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

static int print_result(const char *path)
{
    struct stat st;
    char size[SIZE_TEXT_MAX];

    if (stat(path, &st) != 0)
        return fail_errno(path);
    printf("%s: %s\n", path, size_text((uint64_t)st.st_size, size));
    return 0;
}

/* What else it takes, said after the reason. */
static void hint_pack(const char *dir)
{
    struct stat st;

    if (stat(dir, &st) != 0 || has_meta(dir))
        return;
    if (is_store(dir))
        diag("%s: is a store: what is packed is the folder that holds it", dir);
    else
        diag("%s: what is packed is a memmap directory or a folder of stores", dir);
}

static int pack(const char *dir, const char *path, const struct zr_archive_save_options *options,
                bool quiet)
{
    struct work work;
    struct zr_error err;
    struct zr_archive_save_options o = *options;

    if (o.no_replace && refuse_existing(path))
        return EXIT_FAILED;
    work_begin(&work, "pack", quiet);
    o.progress = work_progress;
    o.progress_ctx = &work;
    bool stores = !has_meta(dir) && folder_has_stores(dir);
    int code = stores ? pack_stores(dir, path, &o, &err) : zr_archive_pack(dir, path, &o, &err);
    int status = work_end(&work, path, code, &err);
    if (code != ZR_OK && !stores)
        hint_pack(dir);
    return status || quiet ? status : print_result(path);
}

static int run(int argc, char **argv)
{
    struct zr_archive_save_options o = {.no_replace = true};
    bool quiet = false;
    int option, status = 0;

    while (!status && (option = getopt_long(argc, argv, "fqh", long_options, NULL)) != -1) {
        if (option == 'h')
            return show_help();
        status = take_option(&o, &quiet, option);
    }
    if (!status)
        status = check_compression(&o);
    if (!status)
        status = expect_arguments(argc, 2);
    return status ? status : pack(argv[optind], argv[optind + 1], &o, quiet);
}

const struct command cmd_pack = {
    .name = "pack",
    .arguments = "DIR FILE",
    .summary = "Pack a memmap directory, or a folder of stores, into an archive",
    .options =
        "DIR is a memmap directory of tensordict (meta.json and .memmap files), or a folder of\n"
        "Dense stores: each becomes a leaf, at its path.  FILE appears when it is complete.\n\n"
        "  --compression WHAT   stored (default), deflate, bzip2 or lzma; of leaves\n"
        "  --level N            of the compression, 1 to 9; deflate up to 12\n"
        "  --sync               wait for the disk at the end\n"
        "  -f, --force          replace FILE if it exists\n"
        "  -q, --quiet          no progress bar, no closing line\n"
        "  -h, --help           this text\n",
    .run = run,
};
