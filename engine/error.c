/* SPDX-License-Identifier: MIT
 *
 * Codes, their names, and the one place that fills a struct zr_error.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

static const struct {
    int code;
    int sys_errno;
    const char *name;
    const char *text;
} codes[] = {
    {ZR_OK, 0, "ZR_OK", "success"},
    {ZR_E_NOMEM, ENOMEM, "ZR_E_NOMEM", "out of memory"},
    {ZR_E_IO, EIO, "ZR_E_IO", "file I/O failed"},
    {ZR_E_INVALID, EINVAL, "ZR_E_INVALID", "invalid argument"},
    {ZR_E_TOO_LARGE, EFBIG, "ZR_E_TOO_LARGE", "record exceeds the 2147483648 byte limit"},
    {ZR_E_NO_SPACE, ENOSPC, "ZR_E_NO_SPACE", "no space left on the disk"},
    {ZR_E_BUFFER, ENOBUFS, "ZR_E_BUFFER", "destination buffer too small"},
    {ZR_E_CORRUPT, EIO, "ZR_E_CORRUPT", "damaged record"},
    {ZR_E_FORMAT, EINVAL, "ZR_E_FORMAT", "not a zrecord store, or its header is damaged"},
    {ZR_E_TRAIN, EINVAL, "ZR_E_TRAIN", "dictionary training failed"},
    {ZR_E_DICT, EINVAL, "ZR_E_DICT", "zstd dictionary missing, unexpected or wrong"},
    {ZR_E_NOT_FOUND, ENOENT, "ZR_E_NOT_FOUND", "no such store"},
    {ZR_E_EXISTS, EEXIST, "ZR_E_EXISTS", "path already exists"},
    {ZR_E_BUSY, EBUSY, "ZR_E_BUSY", "store is busy"},
    {ZR_E_TRUNCATED, EIO, "ZR_E_TRUNCATED", "file is shorter than its header says"},
    {ZR_E_FOREIGN, EINVAL, "ZR_E_FOREIGN", "store layout of another program or version"},
    {ZR_E_STATE, EINVAL, "ZR_E_STATE", "the handle cannot do this any more"},
    {ZR_E_PERMISSION, EACCES, "ZR_E_PERMISSION", "permission denied"},
    {ZR_E_CHECKSUM, EIO, "ZR_E_CHECKSUM", "record differs from its checksum"},
    {ZR_E_RANGE, ERANGE, "ZR_E_RANGE", "record id out of range"},
    {ZR_E_SCHEMA, EINVAL, "ZR_E_SCHEMA", "invalid schema"},
    {ZR_E_GEOMETRY, EINVAL, "ZR_E_GEOMETRY", "store has the other geometry"},
    {ZR_E_CANCELLED, ECANCELED, "ZR_E_CANCELLED", "cancelled"},
    {ZR_E_NPY, EINVAL, "ZR_E_NPY", "not a .npy file that can be read"},
};

const char zri_out_of_memory[] = "out of memory";

static size_t code_index(int code)
{
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].code == code)
            return i;
    return SIZE_MAX;
}

const char *zr_code_name(int code)
{
    size_t i = code_index(code);
    return i == SIZE_MAX ? "ZR_E_?" : codes[i].name;
}

const char *zr_code_text(int code)
{
    size_t i = code_index(code);
    return i == SIZE_MAX ? "unknown error" : codes[i].text;
}

int zr_code_errno(int code)
{
    size_t i = code_index(code);
    return i == SIZE_MAX ? EIO : codes[i].sys_errno;
}

const char *zr_version(void)
{
    return ZR_VERSION_STRING;
}

int zri_code_from_errno(int sys_errno)
{
    switch (sys_errno) {
    case ENOMEM:
        return ZR_E_NOMEM;
    case ENOSPC:
    case EDQUOT:
        return ZR_E_NO_SPACE;
    case ENOENT:
        return ZR_E_NOT_FOUND;
    case EEXIST:
    case ENOTEMPTY:
        return ZR_E_EXISTS;
    case EACCES:
    case EPERM:
    case EROFS:
        return ZR_E_PERMISSION;
    default:
        return ZR_E_IO;
    }
}

/* A path may hold any byte; the message must stay one line. */
static void one_line(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 0x7f)
            *s = '?';
}

/* The reason stands at the end and the file at the start, so what is too long
 * (a path may have 4096 bytes) loses its middle. */
static void set_message(struct zr_error *err, const char *text)
{
    static const char gap[] = " ... ";
    size_t n = strlen(text), capacity = sizeof err->message - 1;
    if (n <= capacity) {
        memcpy(err->message, text, n + 1);
    } else {
        size_t head = capacity / 4, tail = capacity - head - strlen(gap);
        memcpy(err->message, text, head);
        memcpy(err->message + head, gap, strlen(gap));
        memcpy(err->message + head + strlen(gap), text + n - tail, tail + 1);
    }
    one_line(err->message);
}

static void fill(struct zr_error *err, int code, int sys_errno, uint64_t record, uint64_t offset,
                 const char *fmt, va_list args)
{
    char text[2 * PATH_MAX];
    err->code = code;
    err->sys_errno = sys_errno;
    err->record = record;
    err->offset = offset;
    int n = vsnprintf(text, sizeof text, fmt, args);
    if (n < 0)
        text[n = 0] = 0;
    if (sys_errno && (size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, ": %s", strerror(sys_errno));
    set_message(err, text);
}

int zri_error_set(struct zr_error *err, int code, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        fill(err, code, 0, ZR_NO_RECORD, ZRI_NO_OFFSET, fmt, args);
        va_end(args);
    }
    return code;
}

int zri_error_set_record(struct zr_error *err, int code, uint64_t record, uint64_t offset,
                         const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        fill(err, code, 0, record, offset, fmt, args);
        va_end(args);
    }
    return code;
}

int zri_error_set_errno(struct zr_error *err, int sys_errno, const char *fmt, ...)
{
    int code = zri_code_from_errno(sys_errno);
    if (err) {
        va_list args;
        va_start(args, fmt);
        fill(err, code, sys_errno, ZR_NO_RECORD, ZRI_NO_OFFSET, fmt, args);
        va_end(args);
    }
    return code;
}

int zri_error_set_errno_record(struct zr_error *err, int sys_errno, uint64_t record,
                               uint64_t offset, const char *fmt, ...)
{
    int code = zri_code_from_errno(sys_errno);
    if (err) {
        va_list args;
        va_start(args, fmt);
        fill(err, code, sys_errno, record, offset, fmt, args);
        va_end(args);
    }
    return code;
}

int zri_fail_as(struct zr_error *err, const struct zr_error *from)
{
    if (err)
        *err = *from;
    return from->code;
}
