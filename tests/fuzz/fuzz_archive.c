/* SPDX-License-Identifier: MIT
 *
 * Hostile archives, opened from memory: the directory, every member, the tree and
 * all that it promises.  Whatever the bytes are: no crash, no leak, no allocation
 * that the bytes do not justify, and what succeeds is consistent.
 */
#include <stdlib.h>

#include "archive.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t nbytes);

#define MEMBER_MAX ((uint64_t)1 << 20) /* larger ones are not read */
#define TOTAL_MAX ((uint64_t)8 << 20)

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_error(int rc, const struct zr_error *err)
{
    require(err->code == rc && rc < 0 && err->message[0] && !strchr(err->message, '\n'));
}

static void check_name(const char *name)
{
    require(name[0] != '/' && !strstr(name, "//"));
    require(strncmp(name, "../", 3) && !strstr(name, "/../") && strcmp(name, ".."));
}

/* A block of exactly its size, so that a write past it is seen. */
static void read_member(const struct zr_archive *a, uint64_t index, uint64_t *total)
{
    struct zr_archive_member m;
    struct zr_error err = {0};
    int rc = zr_archive_member(a, index, &m, &err);
    if (rc) {
        check_error(rc, &err);
        return;
    }
    check_name(m.name);
    uint64_t found;
    require(zr_archive_find(a, m.name, &found, NULL) == ZR_OK && found == index);
    require(m.payload_off + m.stored_nbytes <= a->file.nbytes);
    if (m.data)
        require(m.nbytes == m.stored_nbytes);
    if (m.nbytes > MEMBER_MAX || (*total += m.nbytes) > TOTAL_MAX)
        return;
    struct zr_archive_copy copy = {index, malloc(m.nbytes ? m.nbytes : 1)};
    struct zr_archive_copy look = {index, NULL};
    const struct zr_archive_read_options alone = {.thread_count = 1};
    rc = zr_archive_read(a, &copy, 1, &alone, &err);
    require(rc == zr_archive_read(a, &look, 1, &alone, NULL));
    if (rc)
        check_error(rc, &err);
    else if (m.data)
        require(!memcmp(m.data, copy.out, m.nbytes));
    free(copy.out);
}

static void check_leaf(const struct zr_archive *a, const struct zr_archive_leaf *leaf)
{
    uint64_t nbytes;
    require(leaf->itemsize && leaf->ndim <= ZR_MAX_NDIM && leaf->path && leaf->dtype);
    if (!leaf->is_nested) {
        require(zri_shape_nbytes(leaf->ndim, leaf->shape, leaf->itemsize, &nbytes));
        require(nbytes == leaf->nbytes);
    }
    require(leaf->member != ZR_NO_MEMBER || leaf->nbytes == 0);
    if (leaf->data) {
        const uint8_t *p = leaf->data;
        require(p >= a->file.bytes && p + leaf->nbytes <= a->file.bytes + a->file.nbytes);
    }
}

static void check_tree(const struct zr_archive *a, const struct zr_archive_tree *tree)
{
    for (size_t i = 0; i < tree->leaf_count; i++)
        check_leaf(a, &tree->leaves[i]);
    for (size_t i = 0; i < tree->level_count; i++) {
        const struct zr_archive_level *level = &tree->levels[i];
        for (size_t k = 0; k < level->entry_count; k++) {
            const struct zr_archive_entry *e = &level->entries[k];
            require(e->index < (e->is_leaf ? tree->leaf_count : tree->level_count));
            require(e->is_leaf || e->index > i);
        }
    }
}

static void read_tree(const struct zr_archive *a, const char *const *keys, size_t key_count)
{
    const struct zr_archive_tree *tree;
    struct zr_error err = {0};
    int rc = zr_archive_tree(a, keys, key_count, &tree, &err);
    if (rc) {
        require(!tree);
        check_error(rc, &err);
        return;
    }
    check_tree(a, tree);
    zr_archive_tree_free(tree);
}

static int count_finding(void *ctx, const struct zr_error *finding)
{
    require(finding->code < 0 && finding->message[0]);
    ++*(uint64_t *)ctx;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t nbytes)
{
    static const char *const paths[][2] = {{"a", "b"}, {"x", ""}, {"..", "."}, {"n", "b"}};
    struct zr_archive *a;
    struct zr_error err = {0};
    uint64_t total = 0, found = 0;
    struct zr_verify_result result;
    zr_set_thread_count(1);
    zr_buffer_set_limit(0);
    uint8_t *bytes = malloc(nbytes ? nbytes : 1); /* a read past it is seen */
    require(bytes != NULL);
    if (nbytes)
        memcpy(bytes, input, nbytes);
    int rc = zri_archive_open_image(&a, bytes, nbytes, &err);
    if (rc) {
        check_error(rc, &err);
    } else {
        for (uint64_t i = 0; i < a->count; i++)
            read_member(a, i, &total);
        read_tree(a, NULL, 0);
        for (size_t i = 0; i < 4; i++)
            read_tree(a, paths[i], 1 + (i & 1));
        if (total <= TOTAL_MAX && a->count < 64) {
            bool large = false;
            for (size_t i = 0; i < a->count; i++)
                large |= a->members[i].nbytes > MEMBER_MAX;
            if (!large) {
                require(zr_archive_verify(a, count_finding, NULL, &found, &result, NULL) == ZR_OK);
                require(found == result.bad_count && result.checked_count == a->count);
            }
        }
    }
    zr_archive_close(a);
    free(bytes);
    return 0;
}
