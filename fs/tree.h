/* SPDX-License-Identifier: MIT
 *
 * Names, inode numbers and record numbers of a mount, and how each follows from
 * the others.  Arithmetic only: no table, no allocation, so ten million records
 * cost nothing until they are asked for.
 */
#ifndef ZRECORDFS_TREE_H
#define ZRECORDFS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---------------------------------------------------------------- names */

#define TREE_NAME_MAX 32 /* bytes of any numbered name, with its NUL */
#define TREE_CONTROL_NAME ".control"
#define TREE_VIEWS_NAME ".views"

/* Numbered names, 0..length-1, padded to one width so that sorted order is
 * record order. */
struct tree {
    uint64_t length;
    unsigned width;     /* digits of a name */
    const char *suffix; /* ".npy"; "" for folders */
};

void tree_init(struct tree *t, uint64_t length, const char *suffix);

/* Writes "00000042.npy" and its NUL; returns the bytes before the NUL.
 * buf holds TREE_NAME_MAX. */
size_t tree_name(const struct tree *t, uint64_t id, char *buf);
/* True and *id only for the one canonical name of a number that exists. */
bool tree_parse(const struct tree *t, const char *name, uint64_t *id);

/* ---------------------------------------------------------------- inode numbers
 * Record i of a store that is mounted by itself is TREE_FIRST_RECORD + i.  In a
 * mirrored tree every folder and store is a place with a number of its own, made
 * from its path (source.c), which takes the bits above the index.  No number is
 * 0: old C libraries and Go skip such entries.  All follow from what is on disk,
 * so they are the same after a remount.
 *
 *   bit 63      exists because somebody asked for it, until forgotten (minted.c)
 *   bits 62-61  role
 *   bits 60-32  place; the index is as wide when there is only one place
 *   bits 31-0   index
 */
#define TREE_MINTED_BIT ((uint64_t)1 << 63)

enum tree_role {
    TREE_PLAIN,   /* the fixed indexes below, and records */
    TREE_PREVIEW, /* of record `index` */
    TREE_SHARD,   /* folder of the records from index * K on */
    TREE_LABEL    /* folder of the records with the label of that rank */
};

enum {
    TREE_FOLDER = 1, /* FUSE_ROOT_ID in place 0 */
    TREE_CONTROL,
    TREE_VIEWS,
    TREE_ALL,
    TREE_AT,
    TREE_EPOCHS,
    TREE_PREFETCH,
    TREE_PREVIEWS,
    TREE_FIRST_RECORD = 64
};

enum { TREE_PLACE_BITS = 29, TREE_INDEX_BITS = 32, TREE_LONE_INDEX_BITS = 61 };

struct tree_ino {
    enum tree_role role;
    uint32_t place; /* 0: the root */
    uint64_t index;
};

/* is_lone: the mount is one store, place 0. */
uint64_t tree_pack(bool is_lone, struct tree_ino parts);
/* For numbers without TREE_MINTED_BIT. */
struct tree_ino tree_unpack(bool is_lone, uint64_t ino);
/* The most records a place can number. */
uint64_t tree_max_length(bool is_lone);

#endif
