/* SPDX-License-Identifier: MIT
 *
 * Checksums of an archive: compared (verify), and computed again after its leaves
 * were changed in place (refresh).  A CRC-32 stands in the directory and, for each
 * member, in its local header or, when it was streamed, behind its payload.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "archive.h"

#define STEP_NBYTES ((uint64_t)4 << 20)
#define ROUND_NBYTES ((uint64_t)256 << 20) /* between two reports */
#define DESCRIPTOR_MAGIC 0x08074b50

/* Of the stored bytes, read from the file. */
static int stored_crc(const struct zr_archive *a, size_t index, uint32_t *crc,
                      struct zri_watch *watch, struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    uint64_t off = 0;
    int rc = zri_member_payload(a, index, &off, err);
    size_t step = m->nbytes < STEP_NBYTES ? (size_t)m->nbytes : (size_t)STEP_NBYTES;
    void *buf = rc ? NULL : zr_buffer_alloc(step);
    if (!rc && !buf)
        rc = zri_member_failed(a, index, ZR_E_NOMEM, zri_out_of_memory, err);
    *crc = 0;
    for (uint64_t done = 0; !rc && done < m->nbytes; done += step) {
        size_t n = m->nbytes - done < step ? (size_t)(m->nbytes - done) : step;
        if (zri_watch_look(watch)) {
            rc = zri_member_failed(a, index, ZR_E_CANCELLED, zri_stopped, err);
            break;
        }
        int e = zri_file_read(&a->file, off + done, buf, n);
        if (e)
            rc = zri_member_failed(a, index, e < 0 ? ZR_E_TRUNCATED : ZR_E_IO, "cannot be read",
                                   err);
        else
            *crc = zri_crc32(*crc, buf, n);
    }
    zr_buffer_free(buf);
    return rc;
}

/* Where the member's own CRC stands, beside that of the directory. */
static int crc_place(const struct zr_archive *a, size_t index, uint64_t *off, struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    uint8_t bytes[8];
    if (!(m->flags & ZRI_ZIP_STREAMED)) {
        *off = m->header_off + ZRI_ZIP_LOCAL_CRC_OFF;
        return ZR_OK;
    }
    uint64_t payload;
    int rc = zri_member_payload(a, index, &payload, err);
    if (rc)
        return rc;
    *off = payload + m->stored_nbytes;
    if (m->limit_off - *off < sizeof bytes || zri_file_read(&a->file, *off, bytes, sizeof bytes))
        return zri_member_failed(a, index, ZR_E_FORMAT, "its data descriptor is missing", err);
    /* Its signature is optional; a CRC could look like one, but then it is the CRC. */
    if (zri_le32(bytes) == DESCRIPTOR_MAGIC && zri_le32(bytes) != m->crc)
        *off += 4;
    return ZR_OK;
}

/* ---------------------------------------------------------------- verify */

struct checking {
    const struct zr_archive *a;
    struct zr_error *errors; /* of the round; code 0 is sound */
    size_t first;
    struct zri_watch watch;
};

static int check_member(const struct zr_archive *a, size_t index, struct zri_watch *watch,
                        struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    uint64_t off = 0;
    uint8_t bytes[4];
    uint32_t crc = m->crc;
    int rc = zri_member_payload(a, index, &off, err);
    if (!rc)
        rc = crc_place(a, index, &off, err);
    if (!rc && zri_file_read(&a->file, off, bytes, sizeof bytes))
        rc = zri_member_failed(a, index, ZR_E_TRUNCATED, "cannot be read", err);
    if (!rc && zri_le32(bytes) != m->crc)
        rc = zri_member_failed(a, index, ZR_E_FORMAT, "its two checksums differ", err);
    if (!rc && m->method == ZRI_ZIP_STORED) {
        rc = stored_crc(a, index, &crc, watch, err);
    } else if (!rc) {
        void *buf = zr_buffer_alloc((size_t)m->nbytes);
        rc = buf ? zri_member_read(a, index, buf, watch, err)
                 : zri_member_failed(a, index, ZR_E_NOMEM, zri_out_of_memory, err);
        zr_buffer_free(buf);
    }
    if (!rc && crc != m->crc)
        rc = zri_member_failed(a, index, ZR_E_CHECKSUM,
                               "its data differs from its checksum (CRC-32)", err);
    return rc;
}

static void check_task(void *ctx, size_t i)
{
    struct checking *c = ctx;
    c->errors[i].code = ZR_OK;
    check_member(c->a, c->first + i, &c->watch, &c->errors[i]);
}

/* Members from first on, until enough bytes are together. */
static size_t round_count(const struct zr_archive *a, size_t first, size_t max)
{
    uint64_t nbytes = 0;
    size_t n = 0;
    while (n < max && first + n < a->count && (n == 0 || nbytes < ROUND_NBYTES))
        nbytes += a->members[first + n++].nbytes;
    return n;
}

#define ROUND_MEMBERS 256

/* What a round of n members came to.  Lack of memory says nothing about a member:
 * it ends the call, as a wish to stop does. */
static int take_round(struct checking *c, size_t n, zr_finding_fn finding, void *ctx,
                      struct zr_verify_result *found, struct zr_error *err)
{
    bool stop = false;
    for (size_t i = 0; i < n && !stop; i++) {
        if (c->errors[i].code == ZR_OK)
            continue;
        if (c->errors[i].code == ZR_E_NOMEM)
            return zri_fail_as(err, &c->errors[i]);
        if (c->errors[i].code == ZR_E_CANCELLED)
            break;
        c->errors[i].record = c->first + i;
        found->bad_count++;
        stop = finding && finding(ctx, &c->errors[i]);
    }
    atomic_store(&c->watch.done, c->first + n);
    if (!atomic_load(&c->watch.stopped))
        found->checked_count += n;
    if (stop || zri_watch_ask(&c->watch))
        return zri_fail(err, ZR_E_CANCELLED, "%s: verification stopped", c->a->path);
    return ZR_OK;
}

int zr_archive_verify(const struct zr_archive *a, zr_finding_fn finding, zr_progress_fn progress,
                      void *ctx, struct zr_verify_result *result, struct zr_error *err)
{
    struct zr_verify_result found = {.checksums_compared = true};
    struct checking c = {.a = a, .errors = malloc(ROUND_MEMBERS * sizeof *c.errors)};
    if (!c.errors)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", a->path);
    int rc = ZR_OK;
    zri_watch_init(&c.watch, progress, ctx, a->count);
    for (size_t n; !rc && c.first < a->count; c.first += n) {
        n = round_count(a, c.first, ROUND_MEMBERS);
        zri_watch_parallel(&c.watch, n, zr_thread_count(), check_task, &c);
        rc = take_round(&c, n, finding, ctx, &found, err);
    }
    free(c.errors);
    if (result && rc != ZR_E_NOMEM)
        *result = found;
    return rc;
}

/* ---------------------------------------------------------------- refresh */

static int put_crc(const struct zr_archive *a, uint64_t off, uint32_t crc, struct zr_error *err)
{
    const uint8_t bytes[] = {(uint8_t)crc, (uint8_t)(crc >> 8), (uint8_t)(crc >> 16),
                             (uint8_t)(crc >> 24)};
    int e = zri_write_full(a->file.fd, bytes, sizeof bytes, off);
    return e ? zri_fail_errno(err, e, "%s: cannot write", a->path) : ZR_OK;
}

static int refresh_member(const struct zr_archive *a, size_t index, struct zri_watch *watch,
                          struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    uint64_t off = 0;
    uint32_t crc;
    if (m->method != ZRI_ZIP_STORED || m->is_folder) /* cannot have changed in place */
        return ZR_OK;
    int rc = crc_place(a, index, &off, err);
    if (!rc)
        rc = stored_crc(a, index, &crc, watch, err);
    if (!rc)
        rc = put_crc(a, off, crc, err);
    return rc ? rc : put_crc(a, m->central_off + ZRI_ZIP_CENTRAL_CRC_OFF, crc, err);
}

static void refresh_task(void *ctx, size_t i)
{
    struct checking *c = ctx;
    c->errors[i].code = ZR_OK;
    refresh_member(c->a, c->first + i, &c->watch, &c->errors[i]);
}

/* All headers are looked at before the first byte changes. */
static int check_places(const struct zr_archive *a, struct zr_error *err)
{
    uint64_t off = 0;
    int rc = ZR_OK;
    for (size_t i = 0; !rc && i < a->count; i++) {
        rc = zri_member_payload(a, i, &off, err);
        if (!rc)
            rc = crc_place(a, i, &off, err);
    }
    if (!rc && zri_archive_find(a, "meta.json", 9) == SIZE_MAX)
        rc = zri_fail(err, ZR_E_FORMAT, "%s: is no memmap archive: it has no meta.json", a->path);
    return rc;
}

static int refresh(struct zr_archive *a, zr_progress_fn progress, void *ctx, struct zr_error *err)
{
    struct checking c = {.a = a, .errors = malloc(ROUND_MEMBERS * sizeof *c.errors)};
    int rc =
        c.errors ? check_places(a, err) : zri_fail(err, ZR_E_NOMEM, "%s: out of memory", a->path);
    zri_watch_init(&c.watch, progress, ctx, a->count);
    for (size_t n; !rc && c.first < a->count; c.first += n) {
        n = round_count(a, c.first, ROUND_MEMBERS);
        zri_watch_parallel(&c.watch, n, zr_thread_count(), refresh_task, &c);
        for (size_t i = 0; !rc && i < n; i++)
            if (c.errors[i].code && c.errors[i].code != ZR_E_CANCELLED)
                rc = zri_fail_as(err, &c.errors[i]);
        atomic_store(&c.watch.done, c.first + n);
        if (!rc && zri_watch_ask(&c.watch))
            rc = zri_fail(err, ZR_E_CANCELLED, "%s: cancelled", a->path);
    }
    free(c.errors);
    return rc;
}

int zr_archive_refresh(const char *path, zr_progress_fn progress, void *ctx, struct zr_error *err)
{
    struct zr_archive *a;
    int rc = zr_archive_open(&a, path, ZR_ARCHIVE_WRITE, err);
    if (rc)
        return rc;
    rc = refresh(a, progress, ctx, err);
    zr_archive_close(a);
    return rc;
}
