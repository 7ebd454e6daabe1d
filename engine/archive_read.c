/* SPDX-License-Identifier: MIT
 *
 * The data of members: copied or inflated, compared with its CRC-32, one at a time
 * or many in parallel.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "archive.h"

int zri_member_stored(const struct zr_archive *a, size_t index, const uint8_t **bytes, void **copy,
                      struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    uint64_t off = 0;
    *copy = NULL;
    int rc = zri_member_payload(a, index, &off, err);
    if (rc)
        return rc;
    /* Private pages of stored payloads may hold changes of this process: what counts
     * is the file. */
    bool changed = a->file.guard && !a->writable && m->method == ZRI_ZIP_STORED;
    if (zri_file_mapped(&a->file) && !changed) {
        *bytes = a->file.bytes + off;
        return ZR_OK;
    }
    *copy = malloc(m->stored_nbytes ? (size_t)m->stored_nbytes : 1);
    if (!*copy)
        return zri_member_failed(a, index, ZR_E_NOMEM, zri_out_of_memory, err);
    int e = zri_file_read(&a->file, off, *copy, (size_t)m->stored_nbytes);
    if (e) {
        free(*copy);
        *copy = NULL;
        return zri_archive_read_failed(a, e, err);
    }
    *bytes = *copy;
    return ZR_OK;
}

/* Straight from the file, for what is not compressed. */
static int read_plain(const struct zr_archive *a, size_t index, void *out, struct zr_error *err)
{
    uint64_t off = 0;
    int rc = zri_member_payload(a, index, &off, err);
    if (rc)
        return rc;
    int e = zri_file_read(&a->file, off, out, (size_t)a->members[index].nbytes);
    return e ? zri_archive_read_failed(a, e, err) : ZR_OK;
}

static int read_compressed(const struct zr_archive *a, size_t index, void *out,
                           struct zri_watch *watch, struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    const uint8_t *bytes = NULL;
    void *copy = NULL;
    int rc = zri_member_stored(a, index, &bytes, &copy, err);
    if (rc)
        return rc;
    const char *why =
        zri_inflate(m->method, bytes, (size_t)m->stored_nbytes, out, (size_t)m->nbytes, watch);
    free(copy);
    if (!zri_file_trusted(&a->file))
        return zri_archive_failed(a, ZR_E_TRUNCATED,
                                  "the file was cut short or failed while it was read", err);
    return why ? zri_member_failed(a, index, ZR_E_CORRUPT, why, err) : ZR_OK;
}

/* The same without a copy: the mapping of a stored member is looked at as it is. */
static int check_data(const struct zr_archive *a, size_t index, struct zri_watch *watch,
                      struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    struct zr_archive_member member;
    int rc = zr_archive_member(a, index, &member, err);
    if (rc)
        return rc;
    if (!member.data || !zri_file_mapped(&a->file)) {
        void *buf = zr_buffer_alloc((size_t)m->nbytes);
        rc = buf ? zri_member_read(a, index, buf, watch, err)
                 : zri_member_failed(a, index, ZR_E_NOMEM, zri_out_of_memory, err);
        zr_buffer_free(buf);
        return rc;
    }
    bool differs = zri_crc32(0, member.data, (size_t)m->nbytes) != m->crc;
    if (!zri_file_trusted(&a->file))
        return zri_archive_failed(a, ZR_E_TRUNCATED,
                                  "the file was cut short or failed while it was read", err);
    return differs ? zri_member_failed(a, index, ZR_E_CHECKSUM,
                                       "its data differs from its checksum (CRC-32)", err)
                   : ZR_OK;
}

int zri_member_read(const struct zr_archive *a, size_t index, void *out, struct zri_watch *watch,
                    struct zr_error *err)
{
    if (!out)
        return check_data(a, index, watch, err);
    const struct zri_member *m = &a->members[index];
    int rc = m->method == ZRI_ZIP_STORED ? read_plain(a, index, out, err)
                                         : read_compressed(a, index, out, watch, err);
    if (!rc && zri_crc32(0, out, (size_t)m->nbytes) != m->crc)
        return zri_member_failed(a, index, ZR_E_CHECKSUM,
                                 "its data differs from its checksum (CRC-32)", err);
    return rc;
}

/* ---------------------------------------------------------------- parallel reading */

#define SERIAL_NBYTES ((uint64_t)256 << 10) /* less than this is not worth a second thread */

struct reading {
    const struct zr_archive *a;
    const struct zr_archive_copy *copies;
    pthread_mutex_t lock;
    struct zr_error error; /* of the first copy that failed; under lock */
    size_t failed;         /* its position; under lock */
    atomic_bool stop;
};

static void read_task(void *ctx, size_t i)
{
    struct reading *r = ctx;
    struct zr_error error;
    if (r->a->on_read)
        r->a->on_read((size_t)r->copies[i].index);
    if (atomic_load(&r->stop) ||
        !zri_member_read(r->a, (size_t)r->copies[i].index, r->copies[i].out, NULL, &error))
        return;
    pthread_mutex_lock(&r->lock);
    if (i < r->failed) {
        r->failed = i;
        r->error = error;
    }
    pthread_mutex_unlock(&r->lock);
    atomic_store(&r->stop, true);
}

int zr_archive_read(const struct zr_archive *a, const struct zr_archive_copy *copies, size_t count,
                    unsigned thread_count, struct zr_error *err)
{
    struct reading r = {
        .a = a, .copies = copies, .lock = PTHREAD_MUTEX_INITIALIZER, .failed = SIZE_MAX};
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (copies[i].index >= a->count)
            return zri_fail(err, ZR_E_RANGE, "%s: no member %" PRIu64, a->path, copies[i].index);
        total += a->members[copies[i].index].nbytes;
    }
    unsigned threads = thread_count ? thread_count : zr_thread_count();
    zri_parallel(count, total < SERIAL_NBYTES ? 1 : threads, read_task, &r);
    pthread_mutex_destroy(&r.lock);
    return r.failed == SIZE_MAX ? ZR_OK : zri_fail_as(err, &r.error);
}
