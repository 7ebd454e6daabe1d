/* SPDX-License-Identifier: MIT
 *
 * Archives opened for reading: the directory, the index of names, members and
 * their payloads.  What the tree means is in archive_tree.c.
 *
 * The directory is copied and parsed once.  Local headers lie all over the file
 * and are only read for members that are used.  Sorted by place, each member may
 * reach up to the next one, so nothing overlaps, whatever headers say.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "archive.h"

/* ---------------------------------------------------------------- memory */

#define BLOCK_NBYTES ((size_t)64 << 10)

struct zri_block {
    struct zri_block *older;
    size_t used, capacity;
    _Alignas(16) uint8_t bytes[];
};

void *zri_block_alloc(struct zri_block **list, size_t nbytes)
{
    struct zri_block *b = *list;
    nbytes = (nbytes + 15) & ~(size_t)15;
    if (!b || b->capacity - b->used < nbytes) {
        size_t capacity = nbytes > BLOCK_NBYTES ? nbytes : BLOCK_NBYTES;
        b = malloc(sizeof *b + capacity);
        if (!b)
            return NULL;
        *b = (struct zri_block){.older = *list, .capacity = capacity};
        *list = b;
    }
    b->used += nbytes;
    return b->bytes + b->used - nbytes;
}

void zri_block_free(struct zri_block *list)
{
    while (list) {
        struct zri_block *older = list->older;
        free(list);
        list = older;
    }
}

/* ---------------------------------------------------------------- errors */

int zri_archive_failed(const struct zr_archive *a, int code, const char *why, struct zr_error *err)
{
    if (why == zri_out_of_memory)
        code = ZR_E_NOMEM;
    return zri_fail(err, code, "%s: %s", a->path, why);
}

int zri_member_error(const struct zr_archive *a, size_t index, int code, const char *why,
                     struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    if (why == zri_out_of_memory)
        code = ZR_E_NOMEM;
    if (why == zri_stopped)
        code = ZR_E_CANCELLED;
    return zri_fail_record(err, code, index, m->header_off, "%s: member %s: %s", a->path,
                           m->name ? m->name : "without a name", why);
}

int zri_archive_read_failed(const struct zr_archive *a, int e, struct zr_error *err)
{
    if (e < 0)
        return zri_archive_failed(a, ZR_E_TRUNCATED, "the file is cut short", err);
    return zri_fail_errno(err, e, "%s: cannot read", a->path);
}

/* ---------------------------------------------------------------- index of names */

static size_t slot_of(const struct zr_archive *a, const char *name, size_t nbytes)
{
    return XXH3_64bits(name, nbytes) & a->slot_mask;
}

size_t zri_archive_find(const struct zr_archive *a, const char *name, size_t name_nbytes)
{
    for (size_t slot = slot_of(a, name, name_nbytes); a->slots[slot];
         slot = (slot + 1) & a->slot_mask) {
        const struct zri_member *m = &a->members[a->slots[slot] - 1];
        if (m->name_nbytes == name_nbytes && !memcmp(m->name, name, name_nbytes))
            return a->slots[slot] - 1;
    }
    return SIZE_MAX;
}

static int add_name(struct zr_archive *a, size_t index, struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    size_t slot = slot_of(a, m->name, m->name_nbytes);
    for (; a->slots[slot]; slot = (slot + 1) & a->slot_mask) {
        const struct zri_member *other = &a->members[a->slots[slot] - 1];
        if (other->name_nbytes == m->name_nbytes && !memcmp(other->name, m->name, m->name_nbytes))
            return zri_member_failed(a, index, ZR_E_FORMAT, "the name is there twice", err);
    }
    a->slots[slot] = (uint32_t)index + 1;
    return ZR_OK;
}

static int make_index(struct zr_archive *a, struct zr_error *err)
{
    size_t n = 16;
    while (n < a->count * 2)
        n *= 2;
    a->slot_mask = n - 1;
    a->slots = calloc(n, sizeof *a->slots);
    if (!a->slots)
        return zri_archive_failed(a, ZR_E_NOMEM, zri_out_of_memory, err);
    int rc = ZR_OK;
    /* The bytes behind a name are parsed by now, so its NUL can take their place. */
    for (size_t i = 0; i < a->count; i++)
        ((char *)(uintptr_t)a->members[i].name)[a->members[i].name_nbytes] = 0;
    for (size_t i = 0; !rc && i < a->count; i++)
        rc = add_name(a, i, err);
    return rc;
}

/* ---------------------------------------------------------------- directory */

static bool is_clean(const uint8_t *s, size_t n)
{
    uint8_t before = '/';
    for (size_t i = 0; i < n; i++) {
        if (s[i] >= 0x80 || s[i] == 0 || (before == '/' && (s[i] == '.' || s[i] == '/')))
            return false;
        before = s[i];
    }
    return n > 0;
}

static int take_name(struct zr_archive *a, size_t index, const struct zri_zip_entry *e,
                     struct zr_error *err)
{
    struct zri_member *m = &a->members[index];
    m->raw_name = e->name;
    m->raw_nbytes = e->name_nbytes;
    if (is_clean(e->name, e->name_nbytes)) { /* nearly all: no copy */
        m->name = (const char *)e->name;
        m->name_nbytes = e->name_nbytes;
    } else {
        char *name = zri_block_alloc(&a->names, 3 * (size_t)e->name_nbytes + 1);
        size_t n;
        if (!name)
            return zri_archive_failed(a, ZR_E_NOMEM, zri_out_of_memory, err);
        const char *why = zri_zip_name(e, name, &n);
        if (why)
            return zri_fail_record(err, ZR_E_FORMAT, index, m->header_off,
                                   "%s: member %zu, '%.*s': %s", a->path, index,
                                   (int)e->name_nbytes, e->name, why);
        m->name = name;
        m->name_nbytes = (uint32_t)n;
    }
    m->is_folder = m->name_nbytes == 0 || m->name[m->name_nbytes - 1] == '/';
    return ZR_OK;
}

/* What can be said before its local header is read. */
static const char *check_member(const struct zri_member *m)
{
    if (m->flags & (ZRI_ZIP_ENCRYPTED | ZRI_ZIP_STRONG | ZRI_ZIP_MASKED))
        return "is encrypted";
    if (m->is_folder && m->nbytes)
        return "is a folder with content";
    if (zri_method_name(m->method) && !zri_method_can_hold(m->method, m->stored_nbytes, m->nbytes))
        return m->method == ZRI_ZIP_STORED ? "is stored with two different sizes"
                                           : "declares more data than its compressed form can hold";
    return NULL;
}

static int take_entry(struct zr_archive *a, const struct zri_zip_entry *e, uint64_t central_off,
                      uint64_t shift, struct zr_error *err)
{
    size_t index = a->count;
    struct zri_member *m = &a->members[index];
    *m = (struct zri_member){.header_off = e->header_off + shift,
                             .nbytes = e->nbytes,
                             .stored_nbytes = e->stored_nbytes,
                             .central_off = central_off,
                             .crc = e->crc,
                             .flags = e->flags,
                             .method = e->method,
                             .is_special = zri_zip_is_special(e)};
    int rc = take_name(a, index, e, err);
    if (rc)
        return rc;
    const char *why = e->header_off > a->dir_off || m->header_off > a->dir_off
                          ? "its place is outside the file"
                          : check_member(m);
    if (why) {
        /* Its name ends nowhere yet. */
        return zri_fail_record(err, ZR_E_FORMAT, index, m->header_off, "%s: member %.*s: %s",
                               a->path, (int)m->name_nbytes, m->name, why);
    }
    a->count++;
    return ZR_OK;
}

static int parse_directory(struct zr_archive *a, const struct zri_zip_end *end, uint64_t shift,
                           struct zr_error *err)
{
    size_t nbytes = (size_t)end->dir_nbytes, used;
    for (size_t at = 0; at < nbytes; at += used) {
        struct zri_zip_entry e;
        const char *why = zri_zip_central_parse(&e, a->dir + at, nbytes - at, &used);
        if (why)
            return zri_fail_record(err, ZR_E_FORMAT, a->count, a->dir_off + at,
                                   "%s: damaged archive: entry %zu of its directory: %s", a->path,
                                   a->count, why);
        int rc = take_entry(a, &e, a->dir_off + at, shift, err);
        if (rc)
            return rc;
    }
    /* Without zip64, some writers let the count wrap. */
    if (end->count != a->count && end->count != (a->count & UINT16_MAX))
        return zri_fail(err, ZR_E_FORMAT,
                        "%s: damaged archive: it says %" PRIu64 " members, its directory has %zu",
                        a->path, end->count, a->count);
    return ZR_OK;
}

static int read_directory(struct zr_archive *a, struct zr_error *err)
{
    struct zri_zip_end end;
    uint8_t *tail;
    size_t tail_nbytes =
        a->file.nbytes < ZRI_ZIP_TAIL_NBYTES ? (size_t)a->file.nbytes : (size_t)ZRI_ZIP_TAIL_NBYTES;
    /* Nearly always nothing follows the end record: look at the last bytes alone first. */
    uint8_t last[ZRI_ZIP_END_NBYTES + ZRI_ZIP_LOCATOR_NBYTES + ZRI_ZIP_END64_NBYTES];
    size_t few = tail_nbytes < sizeof last ? tail_nbytes : sizeof last;
    int e = zri_file_read(&a->file, a->file.nbytes - few, last, few);
    if (e)
        return zri_archive_read_failed(a, e, err);
    const char *why = zri_zip_end_parse(&end, last, few, a->file.nbytes);
    if (why && few < tail_nbytes) {
        tail = malloc(tail_nbytes);
        if (!tail)
            return zri_archive_failed(a, ZR_E_NOMEM, zri_out_of_memory, err);
        e = zri_file_read(&a->file, a->file.nbytes - tail_nbytes, tail, tail_nbytes);
        if (!e)
            why = zri_zip_end_parse(&end, tail, tail_nbytes, a->file.nbytes);
        free(tail);
        if (e)
            return zri_archive_read_failed(a, e, err);
    }
    if (why)
        return zri_archive_failed(a, ZR_E_FORMAT, why, err);
    if (end.dir_nbytes > end.end_off || end.dir_off > end.end_off - end.dir_nbytes)
        return zri_archive_failed(a, ZR_E_FORMAT,
                                  "damaged archive: its directory lies outside the file", err);
    a->dir_off = end.end_off - end.dir_nbytes;
    size_t capacity = (size_t)(end.dir_nbytes / ZRI_ZIP_CENTRAL_NBYTES);
    if (capacity >= UINT32_MAX - 1)
        return zri_archive_failed(a, ZR_E_FORMAT, "more members than can be handled", err);
    a->dir = malloc((size_t)end.dir_nbytes + 1);
    a->members = malloc((capacity + 1) * sizeof *a->members);
    if (!a->dir || !a->members)
        return zri_archive_failed(a, ZR_E_NOMEM, zri_out_of_memory, err);
    e = zri_file_read(&a->file, a->dir_off, a->dir, (size_t)end.dir_nbytes);
    if (e)
        return zri_archive_read_failed(a, e, err);
    return parse_directory(a, &end, a->dir_off - end.dir_off, err);
}

/* ---------------------------------------------------------------- places */

static int by_place(const void *x, const void *y, void *members)
{
    const struct zri_member *m = members;
    uint64_t a = m[*(const uint32_t *)x].header_off, b = m[*(const uint32_t *)y].header_off;
    return a < b ? -1 : a > b;
}

static int set_limit(struct zr_archive *a, size_t index, uint64_t limit_off, struct zr_error *err)
{
    struct zri_member *m = &a->members[index];
    m->limit_off = limit_off;
    uint64_t room = limit_off - m->header_off;
    if (room < ZRI_ZIP_LOCAL_NBYTES + (uint64_t)m->raw_nbytes ||
        m->stored_nbytes > room - ZRI_ZIP_LOCAL_NBYTES - m->raw_nbytes)
        return zri_member_failed(a, index, ZR_E_FORMAT, "overlaps what follows it", err);
    return ZR_OK;
}

static int limit_unsorted(struct zr_archive *a, struct zr_error *err)
{
    uint32_t *order = malloc(a->count * sizeof *order);
    if (!order)
        return zri_archive_failed(a, ZR_E_NOMEM, zri_out_of_memory, err);
    for (size_t i = 0; i < a->count; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, a->count, sizeof *order, by_place, a->members);
    int rc = ZR_OK;
    for (size_t i = 0; !rc && i < a->count; i++) {
        bool last = i + 1 == a->count;
        rc = set_limit(a, order[i], last ? a->dir_off : a->members[order[i + 1]].header_off, err);
    }
    free(order);
    return rc;
}

static int set_limits(struct zr_archive *a, struct zr_error *err)
{
    bool sorted = true;
    for (size_t i = 1; sorted && i < a->count; i++)
        sorted = a->members[i - 1].header_off <= a->members[i].header_off;
    if (!sorted)
        return limit_unsorted(a, err);
    int rc = ZR_OK;
    for (size_t i = 0; !rc && i < a->count; i++)
        rc = set_limit(a, i, i + 1 < a->count ? a->members[i + 1].header_off : a->dir_off, err);
    return rc;
}

/* ---------------------------------------------------------------- members */

/* The local header against the directory's entry. */
static const char *compare_headers(const struct zri_member *m, const struct zri_zip_entry *local)
{
    if (local->name_nbytes != m->raw_nbytes)
        return "its two headers differ in its name";
    if ((local->flags ^ m->flags) & (ZRI_ZIP_ENCRYPTED | ZRI_ZIP_STREAMED))
        return "its two headers differ in its flags";
    if (local->method != m->method)
        return "its two headers differ in its method";
    if (!(m->flags & ZRI_ZIP_STREAMED) &&
        (local->nbytes != m->nbytes || local->stored_nbytes != m->stored_nbytes))
        return "its two headers differ in its size";
    return NULL;
}

/* The name in the directory's copy lost the byte behind it, not its own. */
static const char *parse_local(const struct zri_member *m, const uint8_t *bytes, size_t nbytes,
                               uint64_t *payload_off)
{
    struct zri_zip_entry local;
    size_t used;
    const char *why = zri_zip_local_parse(&local, bytes, nbytes, &used);
    if (!why)
        why = compare_headers(m, &local);
    if (!why && memcmp(local.name, m->raw_name, m->raw_nbytes))
        why = "its two headers differ in its name";
    if (why)
        return why;
    *payload_off = m->header_off + used;
    return m->limit_off - m->header_off - used < m->stored_nbytes ? "overlaps what follows it"
                                                                  : NULL;
}

int zri_member_payload(const struct zr_archive *a, size_t index, uint64_t *payload_off,
                       struct zr_error *err)
{
    const struct zri_member *m = &a->members[index];
    uint8_t few[512], *bytes = few;
    uint64_t room = m->limit_off - m->header_off;
    size_t nbytes = room < sizeof few ? (size_t)room : sizeof few;
    int e = zri_file_read(&a->file, m->header_off, few, nbytes);
    if (e)
        return zri_archive_read_failed(a, e, err);
    size_t want = ZRI_ZIP_LOCAL_NBYTES + (size_t)zri_le16(few + 26) + zri_le16(few + 28);
    if (want > nbytes && want <= room) { /* a long name or much padding */
        bytes = malloc(want);
        nbytes = want;
        e = bytes ? zri_file_read(&a->file, m->header_off, bytes, nbytes) : 0;
    }
    const char *why = !bytes ? zri_out_of_memory
                      : e    ? NULL
                             : parse_local(m, bytes, nbytes, payload_off);
    if (bytes != few)
        free(bytes);
    if (e)
        return zri_archive_read_failed(a, e, err);
    if (!why && !zri_method_name(m->method))
        return zri_fail_record(err, ZR_E_FORMAT, index, m->header_off,
                               "%s: member %s: compression method %u is not supported", a->path,
                               m->name, m->method);
    return why ? zri_member_failed(a, index, ZR_E_FORMAT, why, err) : ZR_OK;
}

/* ---------------------------------------------------------------- open and close */

static int load(struct zr_archive *a, struct zr_error *err)
{
    int rc = read_directory(a, err);
    if (!rc)
        rc = make_index(a, err);
    if (!rc)
        rc = set_limits(a, err);
    return rc;
}

static struct zr_archive *new_archive(const char *path)
{
    struct zr_archive *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->file = ZRI_FILE_NONE;
    a->path = strdup(path);
    if (a->path)
        return a;
    free(a);
    return NULL;
}

static int open_file(struct zr_archive *a, int mode, struct zr_error *err)
{
    a->writable = mode == ZR_ARCHIVE_WRITE;
    int e = a->writable ? zri_file_open_writable(&a->file, AT_FDCWD, a->path)
                        : zri_file_open(&a->file, AT_FDCWD, a->path);
    struct stat st;
    if (!e && fstat(a->file.fd, &st))
        e = errno;
    if (e == EINVAL)
        return zri_archive_failed(a, ZR_E_FORMAT, "is no regular file, so no archive", err);
    if (e)
        return zri_fail_errno(err, e, "%s: cannot open", a->path);
    a->mtime_sec = st.st_mtim.tv_sec;
    a->mtime_nsec = st.st_mtim.tv_nsec;
    e = a->writable ? zri_file_map_writable(&a->file) : zri_file_map_private(&a->file);
    return e ? zri_fail_errno(err, e, "%s: cannot map", a->path) : ZR_OK;
}

static int open_path(struct zr_archive **out, const char *path, int mode, struct zr_error *err)
{
    struct zr_archive *a = new_archive(path);
    if (!a)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", path);
    int rc = open_file(a, mode, err);
    if (!rc)
        rc = load(a, err);
    if (rc) {
        zr_archive_close(a);
        return rc;
    }
    *out = a;
    return ZR_OK;
}

int zr_archive_open(struct zr_archive **out, const char *path, int mode, struct zr_error *err)
{
    *out = NULL;
    if (!path || !*path)
        return zri_fail(err, ZR_E_INVALID, "the path of an archive is empty");
    if (mode != ZR_ARCHIVE_COPY && mode != ZR_ARCHIVE_WRITE)
        return zri_fail(err, ZR_E_INVALID, "%s: unknown mode %d", path, mode);
    return open_path(out, path, mode, err);
}

int zri_archive_open_image(struct zr_archive **out, const void *bytes, size_t nbytes,
                           struct zr_error *err)
{
    *out = NULL;
    struct zr_archive *a = new_archive("image");
    if (!a)
        return zri_fail(err, ZR_E_NOMEM, "out of memory");
    a->file.bytes = bytes;
    a->file.nbytes = nbytes;
    int rc = load(a, err);
    if (rc) {
        zr_archive_close(a);
        return rc;
    }
    *out = a;
    return ZR_OK;
}

void zr_archive_close(struct zr_archive *a)
{
    if (!a)
        return;
    zri_file_close(&a->file);
    zri_block_free(a->names);
    free(a->slots);
    free(a->members);
    free(a->dir);
    free(a->path);
    free(a);
}

bool zr_archive_is(const char *path)
{
    struct zr_archive *a;
    uint64_t index;
    if (zr_archive_open(&a, path, ZR_ARCHIVE_COPY, NULL))
        return false;
    bool is = zr_archive_find(a, "meta.json", &index, NULL) == ZR_OK;
    zr_archive_close(a);
    return is;
}

/* ---------------------------------------------------------------- questions */

void zr_archive_info(const struct zr_archive *a, struct zr_archive_info *info)
{
    uint64_t sum = a->count;
    for (size_t i = 0; i < a->count; i++) {
        const struct zri_member *m = &a->members[i];
        const uint64_t place[] = {m->header_off, m->nbytes, m->stored_nbytes, sum};
        sum = XXH3_64bits_withSeed(m->name, m->name_nbytes, XXH3_64bits(place, sizeof place));
    }
    *info = (struct zr_archive_info){.path = a->path,
                                     .nbytes = a->file.nbytes,
                                     .member_count = a->count,
                                     .mtime_sec = a->mtime_sec,
                                     .mtime_nsec = a->mtime_nsec,
                                     .identity = sum};
}

bool zr_archive_intact(const struct zr_archive *a)
{
    return zri_file_trusted(&a->file);
}

int zr_archive_member(const struct zr_archive *a, uint64_t index, struct zr_archive_member *member,
                      struct zr_error *err)
{
    if (index >= a->count)
        return zri_fail(err, ZR_E_RANGE, "%s: no member %" PRIu64 ", it has %zu", a->path, index,
                        a->count);
    const struct zri_member *m = &a->members[index];
    uint64_t off = 0;
    int rc = zri_member_payload(a, (size_t)index, &off, err);
    if (rc)
        return rc;
    *member = (struct zr_archive_member){
        .name = m->name,
        .nbytes = m->nbytes,
        .stored_nbytes = m->stored_nbytes,
        .payload_off = off,
        .crc32 = m->crc,
        .method = zri_method_name(m->method),
        .data = m->method == ZRI_ZIP_STORED && a->file.bytes
                    ? (void *)(uintptr_t)(a->file.bytes + off)
                    : NULL,
    };
    return ZR_OK;
}

int zr_archive_find(const struct zr_archive *a, const char *name, uint64_t *index,
                    struct zr_error *err)
{
    size_t i = zri_archive_find(a, name, strlen(name));
    if (i == SIZE_MAX)
        return zri_fail(err, ZR_E_NOT_FOUND, "%s: has no member %s", a->path, name);
    *index = i;
    return ZR_OK;
}
