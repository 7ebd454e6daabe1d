/* SPDX-License-Identifier: MIT
 *
 * A .npy or a folder of .npy as a sequence of records: what is there (source.c),
 * its payload in pieces (batch.c, fortran.c) and a dictionary for it (train.c).
 *
 * Functions that return int give 0 or the exit status, having said why.
 */
#ifndef ZRECORD_TOOLS_SOURCE_H
#define ZRECORD_TOOLS_SOURCE_H

#include "tools.h"

/* ---------------------------------------------------------------- source.c */

enum shape_choice { SHAPE_AUTO, SHAPE_DENSE, SHAPE_RAGGED };

struct source {
    const char *path;
    bool folder;  /* each file is a record; else each row of one .npy is */
    char **names; /* folder: sorted */
    size_t name_count;
    int fd;            /* the .npy, or the folder */
    struct zr_npy npy; /* of the .npy, or of the folder's first file */
    bool ragged;
    uint32_t ndim; /* of a record (Ragged folder: of the first) */
    const uint64_t *shape;
    uint64_t row_nbytes;
    uint64_t record_count;
    uint64_t data_nbytes; /* payload of all records */
};

/* SHAPE_AUTO: one .npy is Dense, a folder is when all its shapes agree. */
int source_open(struct source *s, const char *path, enum shape_choice choice);
void source_close(struct source *s);

/* A .npy that is open, its header read. */
struct npy_file {
    int fd;
    struct zr_npy npy;
};
int open_npy(struct npy_file *f, int dir_fd, const char *file, const char *name);
/* "FOLDER/NAME" for messages; valid until the next call. */
const char *file_title(const struct source *s, size_t index);
/* Says that `name` cannot be taken; returns EXIT_FAILED. */
int refuse(const char *name, const char *reason);
/* Refuses records of no bytes or over the limit. */
int check_record(const struct source *s, const char *name, uint32_t ndim, uint64_t payload_nbytes);
bool same_shape(const struct zr_npy *a, const struct zr_npy *b);

/* ---------------------------------------------------------------- batch.c */

/* Records in memory, payloads end to end.  Starts as zeroes. */
struct batch {
    unsigned char *data;
    size_t capacity_nbytes, used_nbytes;
    uint64_t count;
    struct zr_item *items; /* Ragged sources only */
    uint64_t *dims;        /* what the items' shapes point into */
};
/* Fills b with records from `first` on: about max_nbytes, but at least one. */
int source_fill(struct source *s, uint64_t first, size_t max_nbytes, struct batch *b);
void batch_release(struct batch *b);

/* All bytes or a message that names the file. */
int read_exactly(int fd, const char *name, void *data, size_t nbytes, uint64_t offset);

/* ---------------------------------------------------------------- fortran.c */

/* Rows of axis 0 of an array, row by row of the given shape. */
struct rows {
    uint64_t data_off; /* of the array in its file */
    uint64_t itemsize;
    uint32_t ndim; /* of a row */
    const uint64_t *shape;
    uint64_t row_items; /* elements of a row */
    uint64_t total_rows;
    uint64_t first, count; /* the rows wanted */
};
/* Reads them from a file in Fortran order into dst, in C order. */
int fortran_read(const struct rows *rows, int fd, const char *name, void *dst);

/* ---------------------------------------------------------------- train.c */

/* Trains a dictionary on records taken at a stride over the source, in the form
 * in which a store holds them.  *dict is released with zr_buffer_free. */
int source_train(struct source *s, int tier, void **dict, size_t *dict_nbytes);

#endif /* ZRECORD_TOOLS_SOURCE_H */
