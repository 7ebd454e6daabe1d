/* SPDX-License-Identifier: MIT
 *
 * zrecord info: what a store is, for people or as JSON.
 */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <time.h>

#include "tools.h"

static const struct option long_options[] = {
    {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

struct summary {
    struct zr_info info;
    uint64_t logical_nbytes; /* decoded bytes of all records */
    const char *warning;
};

/* Dense: a product.  Ragged: the table says it record by record. */
static int add_up(struct zr_reader *r, struct summary *sum)
{
    struct zr_location loc;
    struct zr_error err;

    if (sum->info.geometry == ZR_DENSE) {
        sum->logical_nbytes = sum->info.length * sum->info.row_nbytes;
        return 0;
    }
    for (uint64_t id = 0; id < sum->info.length; id++) {
        if (zr_reader_locate(r, id, &loc, &err) != ZR_OK)
            return fail(&err);
        sum->logical_nbytes += loc.logic_nbytes;
    }
    return 0;
}

static const char *time_text(int64_t seconds, char *buf, size_t size)
{
    time_t when = (time_t)seconds;
    struct tm utc;

    if (!gmtime_r(&when, &utc) || strftime(buf, size, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        buf[0] = '\0';
    return buf;
}

/* ---------------------------------------------------------------- for people */

static void print_text(const struct summary *sum)
{
    const struct zr_info *info = &sum->info;
    char shape[SHAPE_TEXT_MAX], size[SIZE_TEXT_MAX], when[32];

    printf("path          %s\n", info->path);
    printf("records       %" PRIu64 ", %s\n", info->length, zr_geometry_name(info->geometry));
    printf("dtype         %s\n", info->dtype);
    if (info->geometry == ZR_DENSE)
        printf("record shape  %s, %s\n", shape_text(info->ndim, info->item_shape, shape),
               size_text(info->row_nbytes, size));
    printf("codec         %s\n", zr_codec_name(info->codec));
    if (info->dict)
        printf("dictionary    %s\n", size_text(info->dict_nbytes, size));
    printf("decoded       %s\n", size_text(sum->logical_nbytes, size));
    printf("stored        %s", size_text(info->data_nbytes, size));
    if (info->data_nbytes)
        printf(", ratio %.2f", (double)sum->logical_nbytes / (double)info->data_nbytes);
    printf("\non disk       %s\n", size_text(info->disk_nbytes, size));
    printf("checksums     %s\n", info->has_sidecar ? "yes" : "no");
    printf("written       %s\n", time_text(info->mtime_sec, when, sizeof when));
}

/* ---------------------------------------------------------------- JSON */

/* A path need not be UTF-8; JSON must. */
static json_t *path_json(const char *path)
{
    json_t *text = json_string(path);

    return text ? text : json_null();
}

static json_t *shape_json(const struct zr_info *info)
{
    json_t *shape = json_array();

    for (uint32_t i = 0; i < info->ndim; i++)
        json_array_append_new(shape, json_integer((json_int_t)info->item_shape[i]));
    return shape;
}

static void set_number(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static json_t *info_json(const struct summary *sum)
{
    const struct zr_info *info = &sum->info;
    char identity[17], when[32];
    json_t *object = json_object();

    snprintf(identity, sizeof identity, "%016" PRIx64, info->identity);
    json_object_set_new(object, "path", path_json(info->path));
    json_object_set_new(object, "geometry", json_string(zr_geometry_name(info->geometry)));
    set_number(object, "length", info->length);
    json_object_set_new(object, "dtype", json_string(info->dtype));
    set_number(object, "itemsize", info->itemsize);
    json_object_set_new(object, "item_shape",
                        info->geometry == ZR_DENSE ? shape_json(info) : json_null());
    json_object_set_new(object, "codec", json_string(zr_codec_name(info->codec)));
    set_number(object, "dict_bytes", info->dict_nbytes);
    set_number(object, "logical_bytes", sum->logical_nbytes);
    set_number(object, "stored_bytes", info->data_nbytes);
    set_number(object, "disk_bytes", info->disk_nbytes);
    json_object_set_new(object, "checksums", json_boolean(info->has_sidecar));
    json_object_set_new(object, "mtime",
                        json_string(time_text(info->mtime_sec, when, sizeof when)));
    json_object_set_new(object, "identity", json_string(identity));
    json_object_set_new(object, "warning", sum->warning ? json_string(sum->warning) : json_null());
    return object;
}

static int print_json(const struct summary *sum)
{
    json_t *object = info_json(sum);
    int failed = json_dumpf(object, stdout, JSON_INDENT(2));

    json_decref(object);
    if (failed)
        return fail_errno("standard output");
    putchar('\n');
    return 0;
}

/* ---------------------------------------------------------------- command */

static int info(const char *path, bool json)
{
    struct zr_reader *r;
    struct summary sum = {0};
    int status = open_store(&r, path, NULL);

    if (status)
        return status;
    zr_reader_info(r, &sum.info);
    sum.warning = zr_reader_warning(r);
    status = add_up(r, &sum);
    if (!status && json)
        status = print_json(&sum);
    else if (!status)
        print_text(&sum);
    zr_reader_close(r);
    return status;
}

static int run(int argc, char **argv)
{
    bool json = false;

    for (int option; (option = getopt_long(argc, argv, "h", long_options, NULL)) != -1;) {
        if (option == 'h')
            return show_help();
        if (option != 'j')
            return usage_hint();
        json = true;
    }
    int status = expect_arguments(argc, 1);
    return status ? status : info(argv[optind], json);
}

const struct command cmd_info = {
    .name = "info",
    .arguments = "STORE",
    .summary = "Show what a store is: records, dtype, codec, sizes",
    .options = "  --json       as one JSON object\n"
               "  -h, --help   this text\n",
    .run = run,
};
