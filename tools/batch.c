/* SPDX-License-Identifier: MIT
 *
 * The payload of a source, in pieces of bounded size.  Files are read with
 * pread: a source that shrinks meanwhile is an error, not a signal.  Fortran
 * order becomes C order (fortran.c); byte order is kept, since the dtype says it.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "source.h"

#define BATCH_ITEMS 16384 /* Ragged records of one batch, at most */
#define BATCH_DIMS 65536

void batch_release(struct batch *b)
{
    zr_buffer_free(b->data);
    free(b->items);
    free(b->dims);
    *b = (struct batch){0};
}

/* Room for more bytes behind the used ones, which stay. */
static int reserve(struct batch *b, uint64_t more_nbytes)
{
    size_t needed = b->used_nbytes + more_nbytes;

    if (needed <= b->capacity_nbytes)
        return 0;
    unsigned char *larger = zr_buffer_alloc(needed);
    if (!larger)
        return fail_nomem();
    if (b->used_nbytes)
        memcpy(larger, b->data, b->used_nbytes);
    zr_buffer_free(b->data);
    b->data = larger;
    b->capacity_nbytes = needed;
    return 0;
}

static int reserve_items(struct batch *b)
{
    if (!b->items)
        b->items = malloc(BATCH_ITEMS * sizeof *b->items);
    if (!b->dims)
        b->dims = malloc(BATCH_DIMS * sizeof *b->dims);
    return b->items && b->dims ? 0 : fail_nomem();
}

int read_exactly(int fd, const char *name, void *data, size_t nbytes, uint64_t offset)
{
    int64_t n = read_at(fd, data, nbytes, offset);

    if (n < 0)
        return fail_errno(name);
    return (size_t)n == nbytes ? 0 : refuse(name, "became shorter while it was read");
}

/* Rows first..first+count of a file into dst, in C order. */
static int read_rows(const struct npy_file *f, const char *name, const struct rows *rows, void *dst)
{
    if (f->npy.fortran_order && f->npy.ndim > 1)
        return fortran_read(rows, f->fd, name, dst);
    uint64_t row_nbytes = rows->row_items * rows->itemsize;
    return read_exactly(f->fd, name, dst, rows->count * row_nbytes,
                        rows->data_off + rows->first * row_nbytes);
}

/* Fewer than *count only at the end of a stream. */
static int take_rows(struct source *s, uint64_t first, uint64_t *count, unsigned char *dst)
{
    if (s->stream)
        return stream_read(s, first, count, dst);
    struct npy_file f = {s->fd, s->npy};
    struct rows rows = {.itemsize = s->npy.itemsize,
                        .ndim = s->ndim,
                        .shape = s->shape,
                        .row_items = s->row_nbytes / s->npy.itemsize,
                        .total_rows = s->record_count,
                        .first = first,
                        .count = *count,
                        .data_off = s->npy.data_off};
    return read_rows(&f, s->path, &rows, dst);
}

static void add_row_items(const struct source *s, struct batch *b)
{
    for (uint64_t i = 0; i < b->count; i++)
        b->items[i] = (struct zr_item){b->data + i * s->row_nbytes, s->shape, s->ndim};
}

static int fill_rows(struct source *s, uint64_t first, size_t max_nbytes, struct batch *b)
{
    uint64_t count = max_nbytes / s->row_nbytes;

    if (count == 0)
        count = 1;
    if (s->ragged && count > BATCH_ITEMS)
        count = BATCH_ITEMS;
    if (count > s->record_count - first)
        count = s->record_count - first;
    int status = reserve(b, count * s->row_nbytes);
    if (!status && s->ragged)
        status = reserve_items(b);
    if (status)
        return status;
    status = take_rows(s, first, &count, b->data);
    b->count = count;
    b->used_nbytes = count * s->row_nbytes;
    if (!status && s->ragged)
        add_row_items(s, b);
    return status;
}

/* Checks a file that was seen by the scan once more and appends its record. */
static int add_file(struct source *s, size_t index, const struct npy_file *f, struct batch *b)
{
    const char *name = file_title(s, index);
    const struct zr_npy *npy = &f->npy;

    if (strcmp(npy->dtype, s->npy.dtype) != 0 || (!s->ragged && !same_shape(npy, &s->npy)))
        return refuse(name, "changed while the folder was read");
    int status = check_record(s, name, npy->ndim, npy->data_nbytes);
    if (!status)
        status = reserve(b, npy->data_nbytes);
    if (status)
        return status;
    struct rows rows = {.itemsize = npy->itemsize,
                        .ndim = npy->ndim,
                        .shape = npy->shape,
                        .row_items = npy->data_nbytes / npy->itemsize,
                        .total_rows = 1,
                        .count = 1,
                        .data_off = npy->data_off};
    status = read_rows(f, name, &rows, b->data + b->used_nbytes);
    if (status)
        return status;
    b->used_nbytes += npy->data_nbytes;
    return 0;
}

/* Where item `count` lies is set by finish_items, since the buffer may move. */
static void add_file_item(struct batch *b, size_t *dims_used, const struct zr_npy *npy)
{
    uint64_t *dims = b->dims + *dims_used;

    memcpy(dims, npy->shape, npy->ndim * sizeof *dims);
    *dims_used += npy->ndim;
    b->items[b->count] = (struct zr_item){.shape = dims, .ndim = npy->ndim};
}

static void finish_items(const struct source *s, struct batch *b)
{
    const unsigned char *data = b->data;

    for (uint64_t i = 0; i < b->count; i++) {
        uint64_t nbytes = s->npy.itemsize;
        for (uint32_t d = 0; d < b->items[i].ndim; d++)
            nbytes *= b->items[i].shape[d];
        b->items[i].data = data;
        data += nbytes;
    }
}

static int fill_one_file(struct source *s, size_t index, struct batch *b, size_t *dims_used)
{
    struct npy_file f;
    int status = open_npy(&f, s->fd, s->names[index], file_title(s, index));

    if (status)
        return status;
    status = add_file(s, index, &f, b);
    close(f.fd);
    if (!status && s->ragged)
        add_file_item(b, dims_used, &f.npy);
    return status;
}

static int fill_files(struct source *s, uint64_t first, size_t max_nbytes, struct batch *b)
{
    size_t dims_used = 0;
    int status = reserve(b, max_nbytes);

    b->count = 0;
    if (!status && s->ragged)
        status = reserve_items(b);
    while (!status && first + b->count < s->record_count) {
        status = fill_one_file(s, first + b->count, b, &dims_used);
        if (status)
            return status;
        b->count++;
        if (b->used_nbytes >= max_nbytes || b->count == BATCH_ITEMS ||
            dims_used > BATCH_DIMS - ZR_MAX_NDIM)
            break;
    }
    if (!status && s->ragged)
        finish_items(s, b);
    return status;
}

int source_fill(struct source *s, uint64_t first, size_t max_nbytes, struct batch *b)
{
    b->used_nbytes = 0;
    return s->folder ? fill_files(s, first, max_nbytes, b) : fill_rows(s, first, max_nbytes, b);
}
