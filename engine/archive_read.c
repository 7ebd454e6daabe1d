/* SPDX-License-Identifier: MIT
 *
 * The data of members: copied or inflated, compared with its CRC-32, one at a time
 * or many in parallel.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "archive.h"

#define STEP_NBYTES ((uint64_t)1 << 20) /* between two looks at the watch */

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

static int compare(const struct zr_archive *a, size_t index, uint32_t crc, struct zr_error *err)
{
    return crc == a->members[index].crc
               ? ZR_OK
               : zri_member_failed(a, index, ZR_E_CHECKSUM,
                                   "its data differs from its checksum (CRC-32)", err);
}

/* Straight from the file, for what is not compressed. */
static int read_plain(const struct zr_archive *a, size_t index, uint8_t *out,
                      struct zri_watch *watch, struct zr_error *err)
{
    uint64_t off = 0, nbytes = a->members[index].nbytes;
    uint32_t crc = 0;
    int rc = zri_member_payload(a, index, &off, err);
    if (rc)
        return rc;
    for (uint64_t done = 0; done < nbytes; done += STEP_NBYTES) {
        size_t n = (size_t)(nbytes - done < STEP_NBYTES ? nbytes - done : STEP_NBYTES);
        if (zri_watch_look(watch))
            return zri_member_failed(a, index, ZR_E_CANCELLED, zri_stopped, err);
        int e = zri_file_read(&a->file, off + done, out + done, n);
        if (e)
            return zri_archive_read_failed(a, e, err);
        crc = zri_crc32(crc, out + done, n);
    }
    return compare(a, index, crc, err);
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
    return why ? zri_member_failed(a, index, ZR_E_CORRUPT, why, err)
               : compare(a, index, zri_crc32(0, out, (size_t)m->nbytes), err);
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
    uint32_t crc = 0;
    for (uint64_t done = 0; done < m->nbytes; done += STEP_NBYTES) {
        size_t n = (size_t)(m->nbytes - done < STEP_NBYTES ? m->nbytes - done : STEP_NBYTES);
        if (zri_watch_look(watch))
            return zri_member_failed(a, index, ZR_E_CANCELLED, zri_stopped, err);
        crc = zri_crc32(crc, (const uint8_t *)member.data + done, n);
    }
    if (!zri_file_trusted(&a->file))
        return zri_archive_failed(a, ZR_E_TRUNCATED,
                                  "the file was cut short or failed while it was read", err);
    return compare(a, index, crc, err);
}

int zri_member_read(const struct zr_archive *a, size_t index, void *out, struct zri_watch *watch,
                    struct zr_error *err)
{
    if (!out)
        return check_data(a, index, watch, err);
    return a->members[index].method == ZRI_ZIP_STORED ? read_plain(a, index, out, watch, err)
                                                      : read_compressed(a, index, out, watch, err);
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
    struct zri_watch watch; /* done: bytes of members that were read */
};

static void read_task(void *ctx, size_t i)
{
    struct reading *r = ctx;
    size_t index = (size_t)r->copies[i].index;
    struct zr_error error;
    if (r->a->on_read)
        r->a->on_read(index);
    if (atomic_load(&r->stop) || zri_watch_look(&r->watch))
        return;
    if (!zri_member_read(r->a, index, r->copies[i].out, &r->watch, &error)) {
        atomic_fetch_add(&r->watch.done, r->a->members[index].nbytes);
        return;
    }
    if (error.code == ZR_E_CANCELLED)
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
                    const struct zr_archive_read_options *options, struct zr_error *err)
{
    const struct zr_archive_read_options o =
        options ? *options : (struct zr_archive_read_options){0};
    struct reading r = {
        .a = a, .copies = copies, .lock = PTHREAD_MUTEX_INITIALIZER, .failed = SIZE_MAX};
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (copies[i].index >= a->count)
            return zri_fail(err, ZR_E_RANGE, "%s: no member %" PRIu64, a->path, copies[i].index);
        total += a->members[copies[i].index].nbytes;
    }
    unsigned threads = o.thread_count ? o.thread_count : zr_thread_count();
    zri_watch_init(&r.watch, o.progress, o.progress_ctx, total);
    zri_watch_parallel(&r.watch, count, total < SERIAL_NBYTES ? 1 : threads, read_task, &r);
    pthread_mutex_destroy(&r.lock);
    if (r.failed != SIZE_MAX)
        return zri_fail_as(err, &r.error);
    if (zri_watch_ask(&r.watch))
        return zri_fail(err, ZR_E_CANCELLED, "%s: cancelled", a->path);
    return ZR_OK;
}
