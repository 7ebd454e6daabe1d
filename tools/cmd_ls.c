/* SPDX-License-Identifier: MIT
 *
 * zrecord ls: the records of a store, one a line.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools.h"

#define IDS_AT_ONCE 1024

static const struct option long_options[] = {{"long", no_argument, NULL, 'l'},
                                             {"records", required_argument, NULL, 'r'},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

static void print_long(const struct zr_info *info, uint64_t id, const struct zr_record_view *view,
                       uint64_t stored_nbytes)
{
    char text[SHAPE_TEXT_MAX], name[NAME_TEXT_MAX];

    printf("%s  %12" PRIu64 " %12" PRIu64 "  %s\n", record_name(id, info->length, name),
           view->data_nbytes, stored_nbytes, shape_text(view->ndim, view->shape, text));
}

/* The shape of a Ragged record is inside it: it has to be decoded. */
static int list_ragged(struct zr_reader *r, const struct zr_info *info, uint64_t id,
                       const struct zr_location *loc)
{
    struct zr_error err;
    struct zr_record_view view;
    uint64_t offsets[2];
    void *record = NULL;
    int code = zr_gather_ragged_plan(r, &id, 1, offsets, &err);

    if (code == ZR_OK) {
        record = zr_buffer_alloc(offsets[1]);
        if (!record)
            return fail_nomem();
        code = zr_gather_ragged(r, &id, 1, record, offsets, &err);
    }
    if (code == ZR_OK) {
        zr_record_split(record, loc->logic_nbytes, &view);
        print_long(info, id, &view, loc->phys_nbytes);
    }
    zr_buffer_free(record);
    return code == ZR_OK ? 0 : fail(&err);
}

static int list_record(struct zr_reader *r, const struct zr_info *info, uint64_t id)
{
    struct zr_location loc;
    struct zr_error err;

    if (zr_reader_locate(r, id, &loc, &err) != ZR_OK)
        return fail(&err);
    if (info->geometry == ZR_RAGGED)
        return list_ragged(r, info, id, &loc);
    struct zr_record_view view = {
        .ndim = info->ndim, .shape = info->item_shape, .data_nbytes = info->row_nbytes};
    print_long(info, id, &view, loc.phys_nbytes);
    return 0;
}

static void list_name(const struct zr_info *info, uint64_t id)
{
    char name[NAME_TEXT_MAX];

    puts(record_name(id, info->length, name));
}

/* A bad record is named and the rest still listed. */
static int list_selected(struct zr_reader *r, const struct zr_info *info, struct selection *s,
                         bool with_details)
{
    uint64_t ids[IDS_AT_ONCE];
    int status = EXIT_FINE;
    size_t count;

    if (with_details)
        printf("%-14s %12s %12s  %s\n", "name", "bytes", "stored", "shape");
    while ((count = selection_take(s, ids, IDS_AT_ONCE)) > 0 && !ferror(stdout)) {
        for (size_t i = 0; i < count; i++) {
            if (!with_details)
                list_name(info, ids[i]);
            else if (list_record(r, info, ids[i]))
                status = EXIT_FAILED;
        }
    }
    return status;
}

static int list(const char *path, struct selection *s, bool with_details)
{
    struct zr_reader *r;
    struct zr_info info;
    int status = open_store(&r, path, NULL);

    if (status)
        return status;
    zr_reader_info(r, &info);
    status = selection_resolve(s, path, info.length);
    if (!status)
        status = list_selected(r, &info, s, with_details);
    zr_reader_close(r);
    return status;
}

static int run(int argc, char **argv)
{
    const char *records = NULL;
    bool with_details = false;
    struct selection s;

    for (int option; (option = getopt_long(argc, argv, "lh", long_options, NULL)) != -1;) {
        switch (option) {
        case 'l':
            with_details = true;
            break;
        case 'r':
            records = optarg;
            break;
        case 'h':
            return show_help();
        default:
            return usage_hint();
        }
    }
    int status = expect_arguments(argc, 1);
    if (!status)
        status = selection_parse(&s, records);
    if (status)
        return status;
    status = list(argv[optind], &s, with_details);
    selection_release(&s);
    return status;
}

const struct command cmd_ls = {
    .name = "ls",
    .arguments = "STORE",
    .summary = "List the records of a store by the names they have in a mount",
    .options = "  -l, --long      also the bytes of each array, its stored bytes and its shape\n"
               "                  (decodes the records of a Ragged store)\n"
               "  --records SEL   only these: 0,5,2 or 0:256 or 0:1000:10\n"
               "  -h, --help      this text\n",
    .run = run,
};
