/* SPDX-License-Identifier: MIT
 *
 * zrecord verify: decodes every record of the given stores, reads every member of the
 * given archives, and names each bad one.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "tools.h"

static const struct option long_options[] = {
    {"quiet", no_argument, NULL, 'q'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

struct check {
    uint64_t finding_count;
    struct progress bar;
};

static int on_finding(void *ctx, const struct zr_error *finding)
{
    struct check *check = ctx;

    check->finding_count++;
    diag("%s", finding->message);
    return signals_pending();
}

static int on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct check *check = ctx;

    check->bar.total = total;
    progress_update(&check->bar, done);
    return signals_pending();
}

static void print_result(const char *path, const struct check *check,
                         const struct zr_verify_result *result)
{
    printf("%s: %" PRIu64 " records checked%s, ", path, result->checked_count,
           result->checksums_compared ? "" : " (decoded only: the store has no checksums)");
    if (check->finding_count)
        printf("%" PRIu64 " fault%s\n", check->finding_count, check->finding_count == 1 ? "" : "s");
    else
        printf("all good\n");
}

static int verify_open(struct zr_reader *r, const char *path, bool quiet)
{
    struct check check = {0};
    struct zr_verify_result result = {0};
    struct zr_error err;
    struct zr_info info;

    zr_reader_info(r, &info);
    progress_begin(&check.bar, "verify", info.length, quiet);
    int code = zr_verify(r, on_finding, on_progress, &check, &result, &err);
    progress_end(&check.bar);
    if (signals_pending()) {
        diag("%s: interrupted", path);
        return EXIT_FAILED;
    }
    if (code != ZR_OK)
        return fail(&err);
    if (!quiet)
        print_result(path, &check, &result);
    return check.finding_count || result.bad_count ? EXIT_FAILED : EXIT_FINE;
}

static int verify_archive(struct zr_archive *a, const char *path, bool quiet)
{
    struct check check = {0};
    struct zr_verify_result result = {0};
    struct zr_error err;

    progress_begin(&check.bar, "verify", 1, quiet);
    int code = zr_archive_verify(a, on_finding, on_progress, &check, &result, &err);
    progress_end(&check.bar);
    if (signals_pending()) {
        diag("%s: interrupted", path);
        return EXIT_FAILED;
    }
    if (code != ZR_OK)
        return fail(&err);
    if (!quiet && !result.bad_count)
        printf("%s: %" PRIu64 " members checked, all good\n", path, result.checked_count);
    else if (!quiet)
        printf("%s: %" PRIu64 " members checked, %" PRIu64 " fault%s\n", path, result.checked_count,
               result.bad_count, result.bad_count == 1 ? "" : "s");
    return result.bad_count ? EXIT_FAILED : EXIT_FINE;
}

static bool is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* The tree is read too: a meta.json that contradicts its files is a fault. */
static int verify_file(const char *path, bool quiet)
{
    struct zr_archive *a;
    struct zr_error err;
    const struct zr_archive_tree *tree = NULL;

    if (zr_archive_open(&a, path, ZR_ARCHIVE_COPY, &err) != ZR_OK) {
        fail(&err);
        if (err.code == ZR_E_FORMAT)
            diag("%s: what is verified is a store (a directory) or a memmap archive (.tdz)", path);
        return EXIT_FAILED;
    }
    int status = verify_archive(a, path, quiet);
    if (status == EXIT_FINE && zr_archive_tree(a, NULL, 0, &tree, &err) != ZR_OK)
        status = fail(&err);
    zr_archive_tree_free(tree);
    zr_archive_close(a);
    return status;
}

static int verify(const char *path, bool quiet)
{
    struct zr_reader *r;
    struct zr_error err;

    if (is_file(path))
        return verify_file(path, quiet);

    /* Not open_store: what opening warns of, zr_verify reports as a finding. */
    if (zr_reader_open(&r, path, NULL, &err) != ZR_OK) {
        fail(&err);
        if (err.code == ZR_E_FORMAT)
            hint_no_store(path);
        return EXIT_FAILED;
    }
    int status = verify_open(r, path, quiet);
    zr_reader_close(r);
    return status;
}

static int run(int argc, char **argv)
{
    bool quiet = false;
    int status = EXIT_FINE;

    for (int option; (option = getopt_long(argc, argv, "qh", long_options, NULL)) != -1;) {
        if (option == 'h')
            return show_help();
        if (option != 'q')
            return usage_hint();
        quiet = true;
    }
    if (optind == argc)
        return usage_error("no store or archive given");
    signals_catch();
    for (int i = optind; i < argc && !signals_pending(); i++)
        if (verify(argv[i], quiet) != EXIT_FINE)
            status = EXIT_FAILED;
    return status;
}

const struct command cmd_verify = {
    .name = "verify",
    .arguments = "STORE|ARCHIVE...",
    .summary = "Read all of a store or archive, compare checksums, name what is bad",
    .options = "Exit status 1 when anything is bad; each bad record is a line on stderr.\n\n"
               "  -q, --quiet   no progress bar, no closing line\n"
               "  -h, --help    this text\n",
    .run = run,
};
