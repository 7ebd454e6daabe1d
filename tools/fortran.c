/* SPDX-License-Identifier: MIT
 *
 * Reads rows of an array that its file holds in Fortran order: element by
 * element the first axis runs fastest, so the values of one position inside the
 * rows (a "column") lie together.  Columns are read a few at a time and
 * scattered to where C order wants them.
 */
#include <stdlib.h>
#include <string.h>

#include "source.h"

#define SCRATCH_NBYTES ((size_t)1 << 20)

/* Walks the positions of a row in Fortran order, giving each one's C order. */
struct position {
    uint64_t index[ZR_MAX_NDIM];
    uint64_t stride[ZR_MAX_NDIM]; /* in elements, C order */
    uint64_t offset;              /* sum of index * stride */
};

static void position_start(struct position *p, const struct rows *rows)
{
    uint64_t stride = 1;

    memset(p, 0, sizeof *p);
    for (uint32_t d = rows->ndim; d-- > 0; stride *= rows->shape[d])
        p->stride[d] = stride;
}

static void position_advance(struct position *p, const struct rows *rows)
{
    for (uint32_t d = 0; d < rows->ndim; d++) {
        p->offset += p->stride[d];
        if (++p->index[d] < rows->shape[d])
            return;
        p->offset -= p->stride[d] * p->index[d];
        p->index[d] = 0;
    }
}

/* Columns first..first+count, laid end to end in scratch. */
static int read_columns(const struct rows *rows, int fd, const char *name, uint64_t first,
                        uint64_t count, unsigned char *scratch)
{
    uint64_t column_nbytes = rows->count * rows->itemsize;
    uint64_t pitch_nbytes = rows->total_rows * rows->itemsize;
    uint64_t offset = rows->data_off + first * pitch_nbytes + rows->first * rows->itemsize;

    if (column_nbytes == pitch_nbytes)
        return read_exactly(fd, name, scratch, count * column_nbytes, offset);
    for (uint64_t i = 0; i < count; i++) {
        int status = read_exactly(fd, name, scratch + i * column_nbytes, column_nbytes,
                                  offset + i * pitch_nbytes);
        if (status)
            return status;
    }
    return 0;
}

static void scatter_column(const struct rows *rows, const unsigned char *column, unsigned char *dst)
{
    uint64_t row_nbytes = rows->row_items * rows->itemsize;

    for (uint64_t r = 0; r < rows->count; r++)
        memcpy(dst + r * row_nbytes, column + r * rows->itemsize, rows->itemsize);
}

static int read_all_columns(const struct rows *rows, int fd, const char *name, uint64_t at_once,
                            unsigned char *scratch, unsigned char *dst)
{
    uint64_t column_nbytes = rows->count * rows->itemsize;
    struct position p;

    position_start(&p, rows);
    for (uint64_t first = 0; first < rows->row_items; first += at_once) {
        uint64_t left = rows->row_items - first, count = left < at_once ? left : at_once;
        int status = read_columns(rows, fd, name, first, count, scratch);
        if (status)
            return status;
        for (uint64_t i = 0; i < count; i++, position_advance(&p, rows))
            scatter_column(rows, scratch + i * column_nbytes, dst + p.offset * rows->itemsize);
    }
    return 0;
}

int fortran_read(const struct rows *rows, int fd, const char *name, void *dst)
{
    uint64_t column_nbytes = rows->count * rows->itemsize;
    uint64_t at_once = column_nbytes < SCRATCH_NBYTES ? SCRATCH_NBYTES / column_nbytes : 1;
    unsigned char *scratch = malloc(at_once * column_nbytes);

    if (!scratch)
        return fail_nomem();
    int status = read_all_columns(rows, fd, name, at_once, scratch, dst);
    free(scratch);
    return status;
}
