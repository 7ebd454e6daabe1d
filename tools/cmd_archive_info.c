/* SPDX-License-Identifier: MIT
 *
 * zrecord archive-info: the leaves of an archive, for people or as JSON.
 */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tools.h"

static const struct option long_options[] = {
    {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

struct summary {
    struct zr_archive *archive;
    struct zr_archive_info info;
    const struct zr_archive_tree *tree;
    uint64_t payload_nbytes, stored_nbytes, mapped_count;
};

static const char *level_kind(int kind)
{
    static const char *const names[] = {"tensordict", "stack", "tensorclass", "view", "value"};

    return names[kind];
}

/* How a leaf is stored: "stored", "deflate", ..., "none". */
static int leaf_member(const struct summary *sum, const struct zr_archive_leaf *leaf,
                       struct zr_archive_member *member)
{
    struct zr_error err;

    *member = (struct zr_archive_member){.method = "none"};
    if (leaf->member == ZR_NO_MEMBER)
        return 0;
    return zr_archive_member(sum->archive, leaf->member, member, &err) == ZR_OK ? 0 : fail(&err);
}

static int add_up(struct summary *sum)
{
    for (size_t i = 0; i < sum->tree->leaf_count; i++) {
        const struct zr_archive_leaf *leaf = &sum->tree->leaves[i];
        struct zr_archive_member member;
        int status = leaf_member(sum, leaf, &member);
        if (status)
            return status;
        sum->payload_nbytes += member.nbytes;
        sum->stored_nbytes += member.stored_nbytes;
        sum->mapped_count += leaf->data || leaf->member == ZR_NO_MEMBER;
    }
    return 0;
}

/* ---------------------------------------------------------------- for people */

static int print_leaf(const struct summary *sum, const struct zr_archive_leaf *leaf)
{
    char shape[SHAPE_TEXT_MAX], size[SIZE_TEXT_MAX];
    struct zr_archive_member member;
    int status = leaf_member(sum, leaf, &member);

    if (!status)
        printf("%-24s %-10s %-16s %10s  %s%s%s\n", leaf->path, leaf->torch_dtype + strlen("torch."),
               shape_text(leaf->ndim, leaf->shape, shape), size_text(leaf->nbytes, size),
               member.method, leaf->data || leaf->member == ZR_NO_MEMBER ? "" : ", copied",
               leaf->is_nested ? ", nested" : "");
    return status;
}

static int print_text(const struct summary *sum)
{
    const struct zr_archive_level *root = &sum->tree->levels[0];
    char shape[SHAPE_TEXT_MAX], size[SIZE_TEXT_MAX];
    int status = 0;

    printf("path          %s\n", sum->info.path);
    printf("file          %s, %" PRIu64 " members\n", size_text(sum->info.nbytes, size),
           sum->info.member_count);
    printf("root          %s", level_kind(root->kind));
    if (root->kind == ZR_LEVEL_TENSORDICT)
        printf(", batch size %s", shape_text(root->ndim, root->shape, shape));
    printf("\nleaves        %zu in %zu levels, %s\n", sum->tree->leaf_count, sum->tree->level_count,
           size_text(sum->payload_nbytes, size));
    printf("write-through %s\n",
           sum->mapped_count == sum->tree->leaf_count ? "possible" : "not possible");
    for (size_t i = 0; !status && i < sum->tree->leaf_count; i++)
        status = print_leaf(sum, &sum->tree->leaves[i]);
    return status;
}

/* ---------------------------------------------------------------- JSON */

static json_t *text_json(const char *text)
{
    json_t *string = json_string(text);

    return string ? string : json_null();
}

static json_t *shape_json(uint32_t ndim, const uint64_t *shape)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < ndim; i++)
        json_array_append_new(array, json_integer((json_int_t)shape[i]));
    return array;
}

static void set_number(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static json_t *leaf_json(const struct summary *sum, const struct zr_archive_leaf *leaf, int *status)
{
    struct zr_archive_member member;
    json_t *object = json_object();

    *status = leaf_member(sum, leaf, &member);
    json_object_set_new(object, "path", text_json(leaf->path));
    json_object_set_new(object, "dtype", json_string(leaf->torch_dtype + strlen("torch.")));
    json_object_set_new(object, "shape", shape_json(leaf->ndim, leaf->shape));
    set_number(object, "bytes", leaf->nbytes);
    set_number(object, "stored_bytes", member.stored_nbytes);
    json_object_set_new(object, "method", json_string(member.method));
    json_object_set_new(
        object, "offset",
        leaf->member == ZR_NO_MEMBER ? json_null() : json_integer((json_int_t)member.payload_off));
    json_object_set_new(object, "mapped", json_boolean(leaf->data || leaf->member == ZR_NO_MEMBER));
    json_object_set_new(object, "nested", json_boolean(leaf->is_nested));
    return object;
}

static json_t *summary_json(const struct summary *sum, int *status)
{
    const struct zr_archive_level *root = &sum->tree->levels[0];
    json_t *object = json_object(), *leaves = json_array();

    json_object_set_new(object, "path", text_json(sum->info.path));
    set_number(object, "bytes", sum->info.nbytes);
    set_number(object, "members", sum->info.member_count);
    json_object_set_new(object, "kind", json_string(level_kind(root->kind)));
    json_object_set_new(object, "batch_size",
                        root->kind == ZR_LEVEL_TENSORDICT ? shape_json(root->ndim, root->shape)
                                                          : json_null());
    set_number(object, "levels", sum->tree->level_count);
    set_number(object, "payload_bytes", sum->payload_nbytes);
    set_number(object, "stored_bytes", sum->stored_nbytes);
    json_object_set_new(object, "write_through",
                        json_boolean(sum->mapped_count == sum->tree->leaf_count));
    for (size_t i = 0; !*status && i < sum->tree->leaf_count; i++)
        json_array_append_new(leaves, leaf_json(sum, &sum->tree->leaves[i], status));
    json_object_set_new(object, "leaves", leaves);
    return object;
}

static int print_json(const struct summary *sum)
{
    int status = 0;
    json_t *object = summary_json(sum, &status);

    if (!status && json_dumpf(object, stdout, JSON_INDENT(2)))
        status = fail_errno("standard output");
    json_decref(object);
    if (!status)
        putchar('\n');
    return status;
}

/* ---------------------------------------------------------------- command */

static int info(const char *path, bool json)
{
    struct summary sum = {0};
    struct zr_error err;

    if (zr_archive_open(&sum.archive, path, ZR_ARCHIVE_COPY, &err) != ZR_OK)
        return fail(&err);
    zr_archive_info(sum.archive, &sum.info);
    int status =
        zr_archive_tree(sum.archive, NULL, 0, &sum.tree, &err) == ZR_OK ? add_up(&sum) : fail(&err);
    if (!status)
        status = json ? print_json(&sum) : print_text(&sum);
    zr_archive_tree_free(sum.tree);
    zr_archive_close(sum.archive);
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

const struct command cmd_archive_info = {
    .name = "archive-info",
    .arguments = "FILE",
    .summary = "Show the leaves of an archive: dtype, shape, how they are stored",
    .options = "  --json       as one JSON object\n"
               "  -h, --help   this text\n",
    .run = run,
};
