/* SPDX-License-Identifier: MIT
 *
 * Hostile requests to the handlers of a mount, without a kernel: names, inode numbers,
 * offsets and commands against a store in memory of nobody's making but this program's.
 *
 * An input is a list of requests: a byte for the kind, then by kind a number of eight bytes,
 * and a text that ends with a newline.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops.h"
#include "selection.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t nbytes);

enum { RECORDS = 300, NODES_MAX = 64 };

static void require(int holds)
{
    if (!holds)
        abort();
}

/* ---------------------------------------------------------------- a tree of stores */

static char folder[] = "/tmp/zrecord-fuzz-XXXXXX";

static void add_store(const char *name, int geometry, const char *dtype, uint32_t ndim,
                      const uint64_t *shape)
{
    char path[128];
    struct zr_writer *w;
    static uint8_t rows[RECORDS * 64];
    const struct zr_writer_options options = {.geometry = geometry,
                                              .codec = ZR_ZSTD,
                                              .dtype = dtype,
                                              .ndim = ndim,
                                              .item_shape = shape,
                                              .durability = ZR_NO_FSYNC};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    require(zr_writer_create(&w, path, &options, NULL) == ZR_OK);
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = (uint8_t)(i / 64 % 12);
    if (geometry == ZR_DENSE)
        require(zr_writer_append_dense(w, rows, RECORDS, NULL) == ZR_OK);
    for (uint64_t n = 1; geometry == ZR_RAGGED && n < 20; n++)
        require(zr_writer_append_ragged(w, &(struct zr_item){rows, &n, 1}, 1, NULL) == ZR_OK);
    require(zr_writer_close(w, NULL) == ZR_OK);
}

static void remove_tree(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    require(system(command) == 0); /* NOLINT(cert-env33-c) */
}

static struct fs *make_fs(uint64_t shard_length, const char *classes)
{
    static struct options options[4];
    static unsigned used;
    struct options *o = &options[used++];
    *o = (struct options){.preview = true,
                          .writable_control = true,
                          .show_control = used % 2,
                          .classes = classes,
                          .shard_length = shard_length,
                          .cache_nbytes = 1 << 16};
    struct fs *fs = calloc(1, sizeof *fs);
    require(fs != NULL);
    const struct sources_options source = {
        .path = folder, .mountpoint = "/nonexistent", .shard_length = shard_length};
    require(sources_new(&fs->sources, &source, NULL) == ZR_OK);
    fs->options = o;
    fs->mountpoint = "/nonexistent";
    fs->cache = cache_new(o->cache_nbytes, node_cache_decode, fs);
    fs->minted = minted_new(1000, 1 << 20);
    fs->counters = counters_new();
    fs->damage = report_damage_new();
    fs->janitor = janitor_new(fs);
    fs->commands = commands_new();
    fs->warm = warm_new(&(struct warm_options){.thread_count = 1});
    return fs;
}

static struct fs *mounts[2];

static void set_up(void)
{
    const uint64_t image[] = {4, 4, 4};
    require(mkdtemp(folder) != NULL);
    atexit(remove_tree);
    add_store("a/image", ZR_DENSE, "|u1", 3, image);
    add_store("a/label", ZR_DENSE, "|u1", 0, NULL);
    add_store("b", ZR_RAGGED, "|u1", 0, NULL);
    report_set_level("error");
    mounts[0] = make_fs(0, "label");
    mounts[1] = make_fs(7, NULL);
}

/* ---------------------------------------------------------------- requests */

/* A number that was seen before, so that names are looked up in folders that exist. */
struct seen {
    uint64_t inos[NODES_MAX];
    size_t count;
};

static void check_node(struct fs *fs, struct seen *seen, const struct node *node)
{
    struct stat st;
    require(node->ino != 0 && node->kind && node->source);
    if (node->kind->attr(fs, node, &st) == 0) {
        require(st.st_ino != 0 && st.st_size >= 0);
        require((st.st_mode & S_IFMT) == node->kind->type);
    }
    if (seen->count < NODES_MAX)
        seen->inos[seen->count++] = node->ino;
}

/* What a number leads to leads back to it. */
static void look_up_number(struct fs *fs, struct seen *seen, uint64_t ino)
{
    struct node node, parent;
    if (node_resolve(fs, ino, &node) != 0)
        return;
    require(node.ino == ino);
    check_node(fs, seen, &node);
    if (node.kind->parent && node.kind->parent(fs, &node, &parent) == 0) {
        require(S_ISDIR(parent.kind->type));
        node_release(fs, &parent);
    }
    node_release(fs, &node);
}

static void look_up_name(struct fs *fs, struct seen *seen, uint64_t ino, const char *name)
{
    struct node dir, child, again;
    if (node_resolve(fs, ino, &dir) != 0)
        return;
    if (dir.kind->child && dir.kind->child(fs, &dir, name, &child) == 0) {
        check_node(fs, seen, &child);
        require(node_resolve(fs, child.ino, &again) == 0);
        require(again.kind == child.kind && again.id == child.id);
        node_release(fs, &again);
        node_release(fs, &child);
    }
    node_release(fs, &dir);
}

/* A part of what a file of records holds, as a READ would have it decoded. */
static void decode(struct fs *fs, uint64_t ino, uint64_t part)
{
    struct node node;
    struct cache_bytes bytes;
    struct zr_error err;
    if (node_resolve(fs, ino, &node) != 0)
        return;
    bool has_rows = node.kind == &node_all || node.kind == &node_at;
    uint64_t count = node.kind == &node_at ? node.id : RECORDS;
    if (has_rows)
        part = count ? part % (count + 1) : 0;
    if (node.kind->decode && node.kind->decode(fs, &node, part, &bytes, &err) == ZR_OK)
        zr_buffer_free(bytes.block);
    node_release(fs, &node);
}

static void select_records(const char *text, uint64_t length)
{
    struct selection *s;
    uint64_t ids[16];
    if (selection_parse(text, strlen(text), length, &s) != 0)
        return;
    uint64_t step = s->count / 16 + 1;
    for (uint64_t at = 0; at < s->count; at += step) {
        size_t n = s->count - at < 16 ? (size_t)(s->count - at) : 16;
        selection_ids(s, at, n, ids);
        for (size_t i = 0; i < n; i++)
            require(ids[i] < length);
    }
    free(s);
}

static void command(struct fs *fs, uint64_t ino, const char *text, size_t nbytes)
{
    struct node node;
    struct zr_mount_ctl ctl = {.nbytes = (uint32_t)nbytes};
    if (strstr(text, "drop") || node_resolve(fs, ino, &node) != 0)
        return; /* drop talks to a kernel */
    struct node text_node = {.ino = 1, .kind = &node_text, .source = node.source};
    memcpy(ctl.text, text, nbytes < sizeof ctl.text ? nbytes : sizeof ctl.text);
    node_text.command(fs, &text_node, true, &ctl);
    require(ctl.nbytes < COMMANDS_WORDS_MAX);
    node_text.write(fs, &text_node, text, nbytes, 0);
    node_release(fs, &node);
}

static void one_request(struct fs *fs, struct seen *seen, uint8_t kind, uint64_t number,
                        const char *text, size_t nbytes)
{
    uint64_t ino = seen->inos[number % seen->count];
    switch (kind % 6) {
    case 0:
        look_up_name(fs, seen, ino, text);
        break;
    case 1:
        look_up_number(fs, seen, number);
        break;
    case 2:
        decode(fs, ino, number);
        break;
    case 3:
        select_records(text, number);
        break;
    case 4:
        command(fs, ino, text, nbytes);
        break;
    default:
        minted_forget(fs->minted, ino, number);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t nbytes)
{
    char text[4096];
    const uint8_t *end = input + nbytes;
    if (!mounts[0])
        set_up();
    if (nbytes == 0)
        return 0;
    struct fs *fs = mounts[*input++ % 2];
    struct seen seen = {.inos = {1}, .count = 1};
    while (end - input > 9) {
        uint8_t kind = *input++;
        uint64_t number;
        memcpy(&number, input, sizeof number);
        input += sizeof number;
        const uint8_t *line_end = memchr(input, '\n', (size_t)(end - input));
        size_t n = (size_t)((line_end ? line_end : end) - input);
        size_t kept = n < sizeof text - 1 ? n : sizeof text - 1;
        memcpy(text, input, kept);
        text[kept] = '\0';
        input += n + (line_end != NULL);
        one_request(fs, &seen, kind, number, text, kept);
    }
    return 0;
}
