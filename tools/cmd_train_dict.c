/* SPDX-License-Identifier: MIT
 *
 * zrecord train-dict: trains a zstd dictionary and writes it to a file.
 */
#include <getopt.h>
#include <stdio.h>

#include "source.h"

static const struct option long_options[] = {{"output", required_argument, NULL, 'o'},
                                             {"tier", required_argument, NULL, 't'},
                                             {"quiet", no_argument, NULL, 'q'},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

static int train_store(const char *path, int tier, void **dict, size_t *dict_nbytes)
{
    struct zr_reader *r;
    struct zr_error err;
    int status = open_store(&r, path, NULL);

    if (status)
        return status;
    if (zr_dict_train_store(r, tier, dict, dict_nbytes, &err) != ZR_OK)
        status = fail(&err);
    zr_reader_close(r);
    return status;
}

static int train(const char *path, int tier, void **dict, size_t *dict_nbytes)
{
    struct source s;

    if (is_store(path))
        return train_store(path, tier, dict, dict_nbytes);
    int status = source_open(&s, path, SHAPE_AUTO);
    if (status)
        return status;
    status = source_train(&s, tier, dict, dict_nbytes);
    source_close(&s);
    return status;
}

static int write_dict(const char *path, const void *dict, size_t dict_nbytes)
{
    struct output o;

    signals_catch();
    int status = output_begin(&o, path, false);
    if (status)
        return status;
    if (write_all(o.fd, dict, dict_nbytes))
        return output_publish(&o);
    status = fail_errno(path);
    output_discard(&o);
    return status;
}

static int train_to_file(const char *source, const char *path, int tier, bool quiet)
{
    void *dict = NULL;
    size_t dict_nbytes = 0;
    char size[SIZE_TEXT_MAX];
    int status = refuse_existing(path);

    if (!status)
        status = train(source, tier, &dict, &dict_nbytes);
    if (!status)
        status = write_dict(path, dict, dict_nbytes);
    zr_buffer_free(dict);
    if (!status && !quiet)
        printf("%s: a dictionary of %s\n", path, size_text(dict_nbytes, size));
    return status;
}

static int run(int argc, char **argv)
{
    const char *path = NULL;
    int option, tier = ZR_TIER_BALANCED;
    bool quiet = false;

    while ((option = getopt_long(argc, argv, "o:qh", long_options, NULL)) != -1) {
        switch (option) {
        case 'o':
            path = optarg;
            break;
        case 'q':
            quiet = true;
            break;
        case 'h':
            return show_help();
        case 't':
            tier = zr_tier_from_name(optarg);
            if (tier < 0)
                return usage_error("--tier '%s': not fast, balanced or max", optarg);
            break;
        default:
            return usage_hint();
        }
    }
    if (!path)
        return usage_error("-o FILE is missing");
    int status = expect_arguments(argc, 1);
    return status ? status : train_to_file(argv[optind], path, tier, quiet);
}

const struct command cmd_train_dict = {
    .name = "train-dict",
    .arguments = "SOURCE -o FILE",
    .summary = "Train a zstd dictionary on a store, .npy, .npz or a folder of .npy",
    .options = "  -o, --output FILE   where the dictionary goes; must not exist\n"
               "  --tier TIER         fast (32 KiB), balanced (128 KiB, default) or max (1 MiB)\n"
               "  -q, --quiet         no closing line\n"
               "  -h, --help          this text\n",
    .run = run,
};
