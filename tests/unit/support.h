/* SPDX-License-Identifier: MIT
 *
 * What the unit tests share: a temporary folder a test, stores to read,
 * files to damage, and the expectation of an error.  Check runs each test in a
 * child of its own; the folders are removed by the parent, whatever the child
 * died of.
 */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"

#define UNUSED __attribute__((unused))
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#else
#define UNDER_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

/* ---------------------------------------------------------------- folders and files */

static char all_tests_dir[] = "/tmp/zrecord-unit-XXXXXX";
static char test_dir[64];

/* A path in this test's folder; good until 8 calls later. */
static UNUSED const char *at(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static UNUSED const char *at(const char *fmt, ...)
{
    static char paths[8][6000];
    static unsigned turn;
    char *out = paths[turn++ % 8];
    int n = snprintf(out, sizeof paths[0], "%s/", test_dir);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + n, sizeof paths[0] - (size_t)n, fmt, args);
    va_end(args);
    return out;
}

static UNUSED bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static UNUSED uint64_t file_nbytes(const char *path)
{
    struct stat st;
    ck_assert_msg(stat(path, &st) == 0, "%s: %s", path, strerror(errno));
    return (uint64_t)st.st_size;
}

/* All bytes of a file, to be freed. */
static UNUSED uint8_t *slurp(const char *path, size_t *nbytes)
{
    size_t n = file_nbytes(path);
    uint8_t *bytes = malloc(n + 1);
    int fd = open(path, O_RDONLY);
    ck_assert(bytes && fd >= 0 && read(fd, bytes, n) == (ssize_t)n);
    close(fd);
    if (nbytes)
        *nbytes = n;
    return bytes;
}

static UNUSED void spit(const char *path, const void *bytes, size_t nbytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    ck_assert(write(fd, bytes, nbytes) == (ssize_t)nbytes);
    close(fd);
}

/* Overwrites a part of a file. */
static UNUSED void patch(const char *path, uint64_t off, const void *bytes, size_t nbytes)
{
    int fd = open(path, O_WRONLY);
    ck_assert(fd >= 0 && pwrite(fd, bytes, nbytes, (off_t)off) == (ssize_t)nbytes);
    close(fd);
}

static UNUSED void patch32(const char *path, uint64_t off, uint32_t v)
{
    patch(path, off, &v, sizeof v);
}

static UNUSED void patch64(const char *path, uint64_t off, uint64_t v)
{
    patch(path, off, &v, sizeof v);
}

static UNUSED void flip(const char *path, uint64_t off)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    ck_assert(fd >= 0 && pread(fd, &byte, 1, (off_t)off) == 1);
    byte ^= 0x5a;
    ck_assert(pwrite(fd, &byte, 1, (off_t)off) == 1);
    close(fd);
}

static UNUSED void cut(const char *path, uint64_t nbytes)
{
    ck_assert(truncate(path, (off_t)nbytes) == 0);
}

static UNUSED void copy_file(const char *from, const char *to)
{
    size_t n;
    uint8_t *bytes = slurp(from, &n);
    spit(to, bytes, n);
    free(bytes);
}

/* How many entries a folder has, hidden ones too. */
static UNUSED unsigned entry_count(const char *path)
{
    unsigned count = 0;
    DIR *dir = opendir(path);
    ck_assert_msg(dir != NULL, "%s: %s", path, strerror(errno));
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 2; /* . and .. */
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

/* rm -rf */
static void remove_tree(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---------------------------------------------------------------- errors */

/* The call failed with this code, filled the error, and its one-line message
 * holds this text. */
#define expect_error(call, wanted_code, text)                                                      \
    do {                                                                                           \
        struct zr_error err = {.code = 1};                                                         \
        int rc_ = (call);                                                                          \
        ck_assert_msg(rc_ == (wanted_code), "%s: %s (%s), not %s", #call, zr_code_name(rc_),       \
                      rc_ ? err.message : "", zr_code_name(wanted_code));                          \
        ck_assert_int_eq(err.code, rc_);                                                           \
        ck_assert_msg(strstr(err.message, (text)), "'%s' lacks '%s'", err.message, (text));        \
        ck_assert_ptr_null(strchr(err.message, '\n'));                                             \
    } while (0)

/* The call succeeded; `err` is there for it. */
#define expect_ok(call)                                                                            \
    do {                                                                                           \
        struct zr_error err = {.code = 1};                                                         \
        int rc_ = (call);                                                                          \
        ck_assert_msg(rc_ == ZR_OK, "%s: %s: %s", #call, zr_code_name(rc_), err.message);          \
        ck_assert_msg(err.code == 1, "%s: succeeded, but filled err: %s", #call, err.message);     \
    } while (0)

/* ---------------------------------------------------------------- stores */

#define ROW_NBYTES 200 /* of the Dense stores here: dtype |u1, item_shape (10, 20) */

/* Byte k of record id: compressible, and no two records alike. */
static inline uint8_t record_byte(uint64_t id, uint64_t k)
{
    return (uint8_t)(k < 8 ? id >> (8 * k) : "a record of some text, "[(k + id) % 23] + id % 5);
}

static UNUSED void fill_record(uint64_t id, void *out, uint64_t nbytes)
{
    for (uint64_t k = 0; k < nbytes; k++)
        ((uint8_t *)out)[k] = record_byte(id, k);
}

static UNUSED bool is_record(uint64_t id, const void *bytes, uint64_t nbytes)
{
    for (uint64_t k = 0; k < nbytes; k++)
        if (((const uint8_t *)bytes)[k] != record_byte(id, k))
            return false;
    return true;
}

static UNUSED size_t train_dict(void *dict, size_t capacity)
{
    enum { SAMPLES = 600 };
    uint8_t *samples = malloc(SAMPLES * ROW_NBYTES);
    size_t sizes[SAMPLES], nbytes;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        fill_record(i, samples + i * ROW_NBYTES, ROW_NBYTES);
        sizes[i] = ROW_NBYTES;
    }
    expect_ok(zr_dict_train(samples, sizes, SAMPLES, dict, capacity, &nbytes, &err));
    free(samples);
    return nbytes;
}

static UNUSED struct zr_writer_options options_for(int geometry, int codec)
{
    static const uint64_t shape[] = {10, 20};
    static uint8_t dict[4096];
    static size_t dict_nbytes;
    struct zr_writer_options o = {.geometry = geometry, .codec = codec, .dtype = "|u1"};
    o.durability = ZR_NO_FSYNC;
    if (geometry == ZR_DENSE) {
        o.ndim = 2;
        o.item_shape = shape;
    }
    if (codec == ZR_ZSTD_DICT) {
        if (!dict_nbytes)
            dict_nbytes = train_dict(dict, sizeof dict);
        o.dict = dict;
        o.dict_nbytes = dict_nbytes;
    }
    return o;
}

static UNUSED void append_rows(struct zr_writer *w, uint64_t first, uint64_t count)
{
    uint8_t *rows = malloc(count * ROW_NBYTES);
    for (uint64_t i = 0; i < count; i++)
        fill_record(first + i, rows + i * ROW_NBYTES, ROW_NBYTES);
    expect_ok(zr_writer_append_dense(w, rows, count, &err));
    free(rows);
}

/* Record id of the Ragged stores has this shape. */
static UNUSED uint32_t ragged_shape_of(uint64_t id, uint64_t *shape)
{
    uint32_t ndim = id % 4;
    for (uint32_t i = 0; i < ndim; i++)
        shape[i] = 1 + (id * 7 + i * 3) % 9;
    return ndim;
}

static UNUSED uint64_t ragged_nbytes_of(uint64_t id)
{
    uint64_t shape[ZR_MAX_NDIM], n = 1;
    for (uint32_t i = ragged_shape_of(id, shape); i--;)
        n *= shape[i];
    return n;
}

static UNUSED void append_items(struct zr_writer *w, uint64_t first, uint64_t count)
{
    struct zr_item *items = calloc(count, sizeof *items);
    uint64_t(*shapes)[4] = calloc(count, sizeof *shapes);
    uint8_t(*payloads)[1000] = calloc(count, sizeof *payloads);
    for (uint64_t i = 0; i < count; i++) {
        items[i].ndim = ragged_shape_of(first + i, shapes[i]);
        items[i].shape = items[i].ndim ? shapes[i] : NULL;
        items[i].data = payloads[i];
        fill_record(first + i, payloads[i], ragged_nbytes_of(first + i));
    }
    expect_ok(zr_writer_append_ragged(w, items, count, &err));
    free(payloads);
    free(shapes);
    free(items);
}

static UNUSED void append_records(struct zr_writer *w, int geometry, uint64_t first, uint64_t count)
{
    if (geometry == ZR_DENSE)
        append_rows(w, first, count);
    else
        append_items(w, first, count);
}

static UNUSED void make_store_with(const char *path, const struct zr_writer_options *o,
                                   uint64_t count)
{
    struct zr_writer *w;
    expect_ok(zr_writer_create(&w, path, o, &err));
    if (count)
        append_records(w, o->geometry, 0, count);
    expect_ok(zr_writer_close(w, &err));
}

static UNUSED void make_store(const char *path, int geometry, int codec, uint64_t count)
{
    struct zr_writer_options o = options_for(geometry, codec);
    make_store_with(path, &o, count);
}

/* The same without side.zr, as other programs write it. */
static UNUSED void make_bare_store(const char *path, int geometry, int codec, uint64_t count)
{
    struct zr_writer_options o = options_for(geometry, codec);
    o.no_sidecar = true;
    make_store_with(path, &o, count);
}

static UNUSED struct zr_reader *open_with(const char *path, int access, bool checksums)
{
    struct zr_reader_options o = {.access = access, .checksums = checksums};
    struct zr_reader *r;
    expect_ok(zr_reader_open(&r, path, &o, &err));
    return r;
}

static UNUSED struct zr_reader *open_store(const char *path)
{
    return open_with(path, ZR_ACCESS_MAP, false);
}

/* Opening fails, and leaves no handle. */
#define expect_no_store(path, wanted_code, text)                                                   \
    do {                                                                                           \
        struct zr_reader *r_ = (struct zr_reader *)1;                                              \
        expect_error(zr_reader_open(&r_, (path), NULL, &err), wanted_code, text);                  \
        ck_assert_ptr_null(r_);                                                                    \
    } while (0)

/* Reads these records of a store made here; WRONG_BYTES when that succeeds with
 * others.  Nothing of Check below, whose lock does not survive a fork: threads and
 * forked children gather too. */
#define WRONG_BYTES 1

static UNUSED int gather_dense(struct zr_reader *r, const uint64_t *ids, size_t count,
                               struct zr_error *err)
{
    uint8_t *out = malloc(count * ROW_NBYTES + 1);
    int rc = zr_gather_dense(r, ids, count, out, count * ROW_NBYTES, err);
    for (size_t i = 0; !rc && i < count; i++)
        if (!is_record(ids[i], out + i * ROW_NBYTES, ROW_NBYTES))
            rc = WRONG_BYTES;
    free(out);
    return rc;
}

static UNUSED bool is_item(uint64_t id, const void *record)
{
    struct zr_record_view v;
    uint64_t shape[ZR_MAX_NDIM];
    uint32_t ndim = ragged_shape_of(id, shape);
    zr_record_split(record, 8 * (1 + (uint64_t)ndim) + ragged_nbytes_of(id), &v);
    return v.ndim == ndim && (!ndim || !memcmp(v.shape, shape, ndim * sizeof *shape)) &&
           v.data_nbytes == ragged_nbytes_of(id) && is_record(id, v.data, v.data_nbytes);
}

static UNUSED int gather_ragged(struct zr_reader *r, const uint64_t *ids, size_t count,
                                struct zr_error *err)
{
    uint64_t *offsets = malloc((count + 1) * sizeof *offsets);
    int rc = zr_gather_ragged_plan(r, ids, count, offsets, err);
    uint8_t *out = rc ? NULL : zr_buffer_alloc(offsets[count]);
    if (!rc)
        rc = zr_gather_ragged(r, ids, count, out, offsets, err);
    for (size_t i = 0; !rc && i < count; i++)
        if (offsets[i] % 16 || !is_item(ids[i], out + offsets[i]))
            rc = WRONG_BYTES;
    zr_buffer_free(out);
    free(offsets);
    return rc;
}

static UNUSED int gather_ids(struct zr_reader *r, const uint64_t *ids, size_t count,
                             struct zr_error *err)
{
    return r->schema.geometry == ZR_DENSE ? gather_dense(r, ids, count, err)
                                          : gather_ragged(r, ids, count, err);
}

static UNUSED int gather_one(struct zr_reader *r, uint64_t id, struct zr_error *err)
{
    return gather_ids(r, &id, 1, err);
}

/* Every record of the store is there and right. */
static UNUSED void check_all_records(struct zr_reader *r, uint64_t count)
{
    uint64_t *ids = malloc((count + 1) * sizeof *ids);
    ck_assert_uint_eq(r->header.length, count);
    for (uint64_t i = 0; i < count; i++)
        ids[i] = i;
    expect_ok(gather_ids(r, ids, count, &err));
    free(ids);
}

/* ---------------------------------------------------------------- running */

static void make_test_dir(void)
{
    snprintf(test_dir, sizeof test_dir, "%s/XXXXXX", all_tests_dir);
    ck_assert(mkdtemp(test_dir) != NULL);
}

/* Runs the tests, each within seconds; main returns what this does. */
static int run_tests(const char *name, const TTest *const *tests, size_t count, double seconds)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, seconds);
    tcase_add_checked_fixture(tcase, make_test_dir, NULL);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    if (!mkdtemp(all_tests_dir)) {
        perror(all_tests_dir);
        return 1;
    }
    chmod(all_tests_dir, 0755); /* tests that drop privileges look inside */
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    remove_tree(all_tests_dir);
    return failed != 0;
}

static UNUSED void say_skipped(const char *function, const char *reason)
{
    printf("SKIP %.*s: %s\n", (int)strlen(function) - 3, function, reason); /* less Check's _fn */
    fflush(stdout);
}

/* Leaves a test with the reason; a missing piece must not hide where CI=true. */
#define skip_test(reason)                                                                          \
    do {                                                                                           \
        const char *ci_ = getenv("CI");                                                            \
        say_skipped(__func__, reason);                                                             \
        ck_assert_msg(!ci_ || strcmp(ci_, "true"), "skipped although CI=true: %s", reason);        \
        return;                                                                                    \
    } while (0)

/* Leaves a test that a sanitizer cannot run. */
#define skip_under(sanitizer, reason)                                                              \
    if (sanitizer) {                                                                               \
        say_skipped(__func__, reason);                                                             \
        return;                                                                                    \
    }
static UNUSED bool under_valgrind(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return preload && strstr(preload, "vgpreload");
}

/* valgrind does not bring back all registers after a fault that a handler mends. */
#define skip_lost_mappings() skip_under(under_valgrind(), "valgrind does not survive a SIGBUS")

/* A child forked while other threads allocate meets a sanitizer's own locks, and
 * the blocks of those threads count as lost. */
#define skip_fork_of_threads()                                                                     \
    skip_under(UNDER_ASAN || UNDER_TSAN || under_valgrind(),                                       \
               "checkers of memory do not survive a fork of a threaded process")

#endif
