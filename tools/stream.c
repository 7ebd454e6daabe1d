/* SPDX-License-Identifier: MIT
 *
 * Rows that come as raw bytes on standard input.  Nothing can be read twice and their
 * number shows only at the end; what a dictionary is trained on, the first rows, is
 * therefore kept until it is stored.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source.h"

#define WAIT_MSEC 200 /* a signal that comes just before the wait is seen after it */

/* ---------------------------------------------------------------- dtype and shape */

static const char *const numpy_names[][2] = {
    {"bool", "|b1"},      {"int8", "|i1"},       {"int16", "<i2"},   {"int32", "<i4"},
    {"int64", "<i8"},     {"uint8", "|u1"},      {"uint16", "<u2"},  {"uint32", "<u4"},
    {"uint64", "<u8"},    {"float16", "<f2"},    {"float32", "<f4"}, {"float64", "<f8"},
    {"complex64", "<c8"}, {"complex128", "<c16"}};

/* NumPy's own spelling: "float32", "f4" and "=f4" become "<f4", "<u1" becomes "|u1". */
static int take_dtype(struct source *s, const char *text)
{
    const char *rest = text;

    for (size_t i = 0; i < sizeof numpy_names / sizeof numpy_names[0]; i++)
        if (strcmp(text, numpy_names[i][0]) == 0)
            rest = numpy_names[i][1];
    char order = *rest && strchr("<>=|", *rest) ? *rest++ : '<';
    if (order == '=')
        order = '<';
    snprintf(s->npy.dtype, sizeof s->npy.dtype, "|%s", rest);
    if (zr_dtype_itemsize(s->npy.dtype, &s->npy.itemsize, NULL) == ZR_OK)
        return 0;
    s->npy.dtype[0] = order;
    if (strlen(rest) + 2 <= sizeof s->npy.dtype &&
        zr_dtype_itemsize(s->npy.dtype, &s->npy.itemsize, NULL) == ZR_OK)
        return 0;
    return usage_error("--dtype '%s': not a dtype of NumPy that a store can have", text);
}

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " ");
}

/* "3,224,224", also as Python writes it: "(3, 224, 224)", "(3,)", "()". */
static bool parse_shape(const char *p, uint32_t *ndim, uint64_t *shape)
{
    char digits[32];
    bool open = *p == '(';

    *ndim = 0;
    p = skip_blanks(p + open);
    while (*p && *p != ')') {
        size_t length = strspn(p, "0123456789");
        if (*ndim == ZR_MAX_NDIM - 1 || length >= sizeof digits)
            return false;
        memcpy(digits, p, length);
        digits[length] = '\0';
        if (!parse_u64(digits, &shape[(*ndim)++]))
            return false;
        p = skip_blanks(p + length);
        if (*p == ',')
            p = skip_blanks(p + 1);
        else if (*p && *p != ')')
            return false;
    }
    return strcmp(p, open ? ")" : "") == 0;
}

static int take_shape(struct source *s, const char *text)
{
    struct zr_npy *npy = &s->npy;
    uint64_t nbytes = npy->itemsize;

    if (!parse_shape(text, &npy->ndim, npy->shape))
        return usage_error("--shape '%s': not a shape of one record (like 3,224,224 or ())", text);
    for (uint32_t i = 0; i < npy->ndim; i++)
        if (__builtin_mul_overflow(nbytes, npy->shape[i], &nbytes))
            return refuse(s->path, "the shape of its records is too large");
    s->ndim = npy->ndim;
    s->shape = npy->shape;
    s->row_nbytes = nbytes;
    return check_record(s, s->path, s->ndim, nbytes);
}

/* ---------------------------------------------------------------- reading */

int source_open_stream(struct source *s, const char *dtype, const char *shape, bool ragged)
{
    struct stat st;

    *s = (struct source){.path = "standard input", .fd = -1, .stream = true, .ragged = ragged};
    s->record_count = UINT64_MAX;
    int status = take_dtype(s, dtype);
    if (!status)
        status = take_shape(s, shape);
    if (status)
        return status;
    if (fstat(STDIN_FILENO, &st) != 0)
        return fail_errno(s->path);
    if (isatty(STDIN_FILENO))
        return refuse(s->path, "is a terminal: send the records from a file or a program");
    off_t start = S_ISREG(st.st_mode) ? lseek(STDIN_FILENO, 0, SEEK_CUR) : 0;
    if (start >= 0 && start < st.st_size)
        s->data_nbytes = (uint64_t)(st.st_size - start);
    return 0;
}

/* 0 also when a signal came instead: *got then stays 0. */
static int read_some(const struct source *s, unsigned char *dst, size_t nbytes, size_t *got)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

    *got = 0;
    while (!signals_pending()) {
        int ready = poll(&input, 1, WAIT_MSEC);
        if (ready == 0 || (ready < 0 && errno == EINTR))
            continue;
        ssize_t n = ready < 0 ? -1 : read(STDIN_FILENO, dst, nbytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return fail_errno(s->path);
        *got = (size_t)n;
        return 0;
    }
    return EXIT_FAILED;
}

/* Up to *count rows, fewer only at the end. */
static int read_rows(struct source *s, uint64_t first, uint64_t *count, unsigned char *dst)
{
    size_t wanted = *count * s->row_nbytes, done = 0, got = 1;
    int status = 0;

    while (!status && !s->ended && done < wanted) {
        status = read_some(s, dst + done, wanted - done, &got);
        s->ended = !status && got == 0;
        done += got;
    }
    *count = done / s->row_nbytes;
    if (status || done % s->row_nbytes == 0)
        return status;
    diag("%s: ends inside record %" PRIu64 ": %zu of its %" PRIu64 " bytes are there", s->path,
         first + *count, done % (size_t)s->row_nbytes, s->row_nbytes);
    return EXIT_FAILED;
}

int stream_read(struct source *s, uint64_t first, uint64_t *count, unsigned char *dst)
{
    if (first >= s->head_count)
        return read_rows(s, first, count, dst);
    if (*count > s->head_count - first)
        *count = s->head_count - first;
    memcpy(dst, s->head + first * s->row_nbytes, *count * s->row_nbytes);
    return 0;
}

int stream_keep_head(struct source *s, size_t nbytes)
{
    uint64_t count = nbytes / s->row_nbytes;

    if (count == 0)
        count = 1;
    s->head = zr_buffer_alloc(count * s->row_nbytes);
    if (!s->head)
        return fail_nomem();
    int status = read_rows(s, 0, &count, s->head);
    s->head_count = count;
    return status;
}
