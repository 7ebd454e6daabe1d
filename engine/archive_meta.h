/* SPDX-License-Identifier: MIT
 *
 * The meta.json of one level of an archive: which leaves and levels it has.
 */
#ifndef ZRI_ARCHIVE_META_H
#define ZRI_ARCHIVE_META_H

#include "archive.h"

struct zri_meta_entry {
    const char *key; /* in the text or in the level's memory */
    size_t key_nbytes;
    const char *dtype; /* NULL: a level */
    size_t dtype_nbytes;
    uint32_t ndim;
    const uint64_t *shape;
    bool is_nested;
};

struct zri_meta {
    struct zri_meta_entry *entries; /* to be freed */
    size_t count, capacity;
    uint32_t ndim;
    const uint64_t *shape; /* NULL: it has none */
    bool has_stack_dim, has_data, has_operation;
    bool is_plain;
};

/* Reads a text that ends in a NUL.  Shapes and decoded keys go to *memory.  NULL, or
 * zri_out_of_memory, or why the level cannot be used, in *memory too. */
const char *zri_meta_parse(struct zri_meta *m, const char *text, size_t nbytes,
                           struct zri_block **memory);

/* By member: what a tree under way has taken. */
enum zri_used { ZRI_UNUSED, ZRI_USED, ZRI_USED_BY_STACK /* as its meta.json */ };

/* Whether no member of the stacks is left over. */
int zri_archive_check_stacks(const struct zr_archive *a, const uint8_t *used, struct zr_error *err);

/* What stands for zero characters and for halves of surrogate pairs in a washed text. */
struct zri_marks {
    unsigned zero, half;
};

/* A copy of the text that jansson takes if Python does, to be freed; NULL: no memory. */
char *zri_json_wash(const char *text, size_t nbytes, struct zri_marks *marks);
/* Puts the zeros of a decoded key back; false when it holds a half, which no name can. */
bool zri_json_unwash(char *key, size_t *nbytes, const struct zri_marks *marks);

#endif
