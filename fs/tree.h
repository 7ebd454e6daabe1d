/* SPDX-License-Identifier: MIT
 *
 * Names, inode numbers, directory positions and record numbers of a mount, and
 * how each follows from the others.  Arithmetic only: no table, no allocation,
 * so ten million records cost nothing until they are asked for.
 */
#ifndef ZRECORDFS_TREE_H
#define ZRECORDFS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TREE_NAME_MAX 32 /* bytes of any name here, with its NUL */
#define TREE_CONTROL_NAME ".control"

/* Inode numbers.  Record i is TREE_FIRST_RECORD_INO + i, after every remount,
 * and no number is 0: old C libraries and Go skip such entries.  Numbers below
 * are for fixed objects; the top bit marks short-lived texts (control.c). */
enum {
    TREE_ROOT_INO = 1, /* FUSE_ROOT_ID */
    TREE_CONTROL_INO = 2,
    TREE_FIRST_RECORD_INO = 64
};
#define TREE_TEXT_INO_BIT ((uint64_t)1 << 63)

struct tree {
    uint64_t length;    /* records */
    unsigned width;     /* digits of a name */
    bool lists_control; /* readdir shows .control */
};

void tree_init(struct tree *t, uint64_t length, bool lists_control);

/* Writes "00000042.npy" and its NUL; returns the bytes before the NUL.
 * buf holds TREE_NAME_MAX. */
size_t tree_name(const struct tree *t, uint64_t id, char *buf);
/* True and *id only for the one canonical name of a record that exists. */
bool tree_parse(const struct tree *t, const char *name, uint64_t *id);

static inline uint64_t tree_record_ino(uint64_t id)
{
    return TREE_FIRST_RECORD_INO + id;
}
/* True and *id when ino is that of a record. */
bool tree_ino_record(const struct tree *t, uint64_t ino, uint64_t *id);

enum tree_kind { TREE_END, TREE_DOT, TREE_DOTDOT, TREE_CONTROL, TREE_RECORD };

/* The root folder's entry at or after position *pos, which moves past it; what
 * it then says is the entry's d_off.  Positions stay valid for ever, so seekdir
 * and any buffer size work.  *id is set for TREE_RECORD. */
enum tree_kind tree_next(const struct tree *t, uint64_t *pos, uint64_t *id);

#endif
