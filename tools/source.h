/* SPDX-License-Identifier: MIT
 *
 * A .npy, an array of a .npz, a folder of .npy or standard input as a sequence of
 * records: what is there (source.c, npz.c, stream.c), its payload in pieces (batch.c,
 * fortran.c) and a dictionary for it (train.c).
 *
 * Functions that return int give 0 or the exit status, having said why.
 */
#ifndef ZRECORD_TOOLS_SOURCE_H
#define ZRECORD_TOOLS_SOURCE_H

#include "tools.h"

/* ---------------------------------------------------------------- source.c */

enum shape_choice { SHAPE_AUTO, SHAPE_DENSE, SHAPE_RAGGED };

struct source {
    const char *path; /* what messages call it */
    char *title;      /* owned: path, when that is not what the user gave */
    bool folder;      /* each file is a record; else each row of one .npy is */
    char **names;     /* folder: sorted */
    size_t name_count;
    int fd;            /* the .npy, or the folder */
    struct zr_npy npy; /* of the .npy, or of the folder's first file */
    bool ragged;
    uint32_t ndim; /* of a record (Ragged folder: of the first) */
    const uint64_t *shape;
    uint64_t row_nbytes;
    uint64_t record_count; /* stream: UINT64_MAX, a batch of no records is the end */
    uint64_t data_nbytes;  /* payload of all records; stream: 0 when not known */
    bool stream, ended;    /* standard input */
    unsigned char *head;   /* stream: its first records, when they were needed early */
    uint64_t head_count;
};

/* SHAPE_AUTO: one .npy is Dense, a folder is when all its shapes agree. */
int source_open(struct source *s, const char *path, enum shape_choice choice);
/* Rows of this dtype and shape, as the user typed them, on standard input. */
int source_open_stream(struct source *s, const char *dtype, const char *shape, bool ragged);
void source_close(struct source *s);

/* A .npy that is open, its header read. */
struct npy_file {
    int fd;
    struct zr_npy npy;
};
int open_npy(struct npy_file *f, int dir_fd, const char *file, const char *name);
/* Reads the header of a .npy that fills [off, off + nbytes) of a file. */
int read_npy_header(int fd, const char *name, uint64_t off, uint64_t nbytes, struct zr_npy *npy);
/* "FOLDER/NAME" for messages; valid until the next call. */
const char *file_title(const struct source *s, size_t index);
/* Says that `name` cannot be taken; returns EXIT_FAILED. */
int refuse(const char *name, const char *reason);
/* Refuses records of no bytes or over the limit. */
int check_record(const struct source *s, const char *name, uint32_t ndim, uint64_t payload_nbytes);
bool same_shape(const struct zr_npy *a, const struct zr_npy *b);

/* ---------------------------------------------------------------- npz.c */

/* True for FILE.npz and FILE.npz:NAME. */
bool is_npz(const char *path);
/* Opens that array, with its checksum compared; sets s->title. */
int open_npz(struct source *s, const char *path, struct npy_file *f);

/* ---------------------------------------------------------------- stream.c */

/* Records first..first+*count into dst; fewer only at the end. */
int stream_read(struct source *s, uint64_t first, uint64_t *count, unsigned char *dst);
/* Reads records of up to nbytes in advance, at least one: stream_read gives these
 * out any number of times. */
int stream_keep_head(struct source *s, size_t nbytes);

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
