/* SPDX-License-Identifier: MIT
 *
 * The budget of mapped.h, in bytes of files.
 */
#include "mapped.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>

/* At most one record, of one byte, lies in the first byte alone. */
enum { NO_RECORDS = 1 };

/* 0 for one that is not there, or that opening will complain about. */
static uint64_t file_nbytes(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n < (int)sizeof path && stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static bool take(_Atomic uint64_t *left, uint64_t nbytes)
{
    uint64_t had = atomic_load(left);
    while (had >= nbytes)
        if (atomic_compare_exchange_weak(left, &had, had - nbytes))
            return true;
    return false;
}

uint64_t mapped_choose(_Atomic uint64_t *left, const char *path, struct zr_reader_options *options)
{
    uint64_t tables = file_nbytes(path, "meta.zr") + file_nbytes(path, "side.zr");
    uint64_t all = tables + file_nbytes(path, "data.zr");
    bool has_all = take(left, all);
    bool has_tables = has_all || take(left, tables);
    options->access = has_tables ? ZR_ACCESS_MAP : ZR_ACCESS_READ;
    options->mapped_nbytes = has_all ? 0 : NO_RECORDS;
    return has_all ? all : has_tables ? tables : 0;
}
