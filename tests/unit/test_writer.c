/* SPDX-License-Identifier: MIT
 *
 * The life of a store under construction (engine/writer.c): created, published,
 * discarded, contended.  Faults of disk and memory are test_faults.c's.
 */
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>

#include "support.h"

static struct zr_writer *create(const char *path)
{
    struct zr_writer_options o = options_for(ZR_DENSE, ZR_ZSTD);
    struct zr_writer *w;
    expect_ok(zr_writer_create(&w, path, &o, &err));
    return w;
}

#define expect_no_writer(path, options, wanted_code, text)                                         \
    do {                                                                                           \
        struct zr_writer *w_ = (struct zr_writer *)1;                                              \
        expect_error(zr_writer_create(&w_, (path), (options), &err), wanted_code, text);           \
        ck_assert_ptr_null(w_);                                                                    \
    } while (0)

#define expect_refused(path, wanted_code, text)                                                    \
    do {                                                                                           \
        struct zr_writer_options o_ = options_for(ZR_DENSE, ZR_ZSTD);                              \
        expect_no_writer(path, &o_, wanted_code, text);                                            \
    } while (0)

static void check_store(const char *path, uint64_t count)
{
    struct zr_reader *r = open_with(path, ZR_ACCESS_MAP, true);
    ck_assert_ptr_null(zr_reader_warning(r));
    check_all_records(r, count);
    zr_reader_close(r);
}

/* ---------------------------------------------------------------- create and close */

START_TEST(nothing_is_at_the_path_until_close)
{
    struct zr_writer *w = create(at("s"));
    append_rows(w, 0, 100);
    ck_assert(!exists(at("s")));
    expect_no_store(at("s"), ZR_E_NOT_FOUND, "no such store");
    expect_ok(zr_writer_close(w, &err));
    check_store(at("s"), 100);
    ck_assert_uint_eq(entry_count(test_dir), 1);
}
END_TEST

START_TEST(the_hidden_build_does_not_open)
{
    struct zr_writer *w = create(at("s"));
    append_rows(w, 0, 100);
    expect_no_store(at(".s.zrecord-build"), ZR_E_BUSY, "busy");
    zr_writer_abort(w);
}
END_TEST

START_TEST(a_published_store_has_exactly_its_files)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++) {
        make_store(at("full%d", codec), ZR_DENSE, codec, 10);
        make_bare_store(at("bare%d", codec), ZR_DENSE, codec, 10);
        bool dict = codec == ZR_ZSTD_DICT;
        ck_assert_uint_eq(entry_count(at("full%d", codec)), 3u + dict);
        ck_assert_uint_eq(entry_count(at("bare%d", codec)), 2u + dict);
        ck_assert_int_eq(exists(at("full%d/dict.zr", codec)), dict);
        ck_assert(!exists(at("bare%d/side.zr", codec)));
    }
}
END_TEST

START_TEST(files_end_where_their_records_end)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++) {
        make_store(at("s%d", codec), ZR_DENSE, codec, 12345);
        struct zr_reader *r = open_store(at("s%d", codec));
        ck_assert_uint_eq(file_nbytes(at("s%d/data.zr", codec)), r->header.tail_off);
        ck_assert_uint_eq(file_nbytes(at("s%d/meta.zr", codec)), 4096 + 16 * 12345);
        ck_assert_uint_eq(file_nbytes(at("s%d/side.zr", codec)), 64 + 4 * 12345);
        zr_reader_close(r);
    }
}
END_TEST

START_TEST(durable_stores_publish_too)
{
    struct zr_writer_options o = options_for(ZR_RAGGED, ZR_ZSTD_DICT);
    o.durability = ZR_DURABLE;
    make_store_with(at("s"), &o, 50);
    check_store(at("s"), 50);
}
END_TEST

START_TEST(missing_parents_are_made)
{
    struct zr_writer *w = create(at("a/b//c/s"));
    append_rows(w, 0, 3);
    expect_ok(zr_writer_close(w, &err));
    check_store(at("a/b/c/s"), 3);
}
END_TEST

START_TEST(aborting_removes_everything_that_create_made)
{
    struct zr_writer *w = create(at("a/b/c/s"));
    append_rows(w, 0, 3);
    zr_writer_abort(w);
    zr_writer_abort(NULL);
    ck_assert_uint_eq(entry_count(test_dir), 0);
    ck_assert(!mkdir(at("kept"), 0777));
    zr_writer_abort(create(at("kept/new/s")));
    ck_assert_uint_eq(entry_count(test_dir), 1);
    ck_assert_uint_eq(entry_count(at("kept")), 0);
}
END_TEST

START_TEST(relative_paths_and_trailing_slashes)
{
    ck_assert(!chdir(test_dir));
    make_store("s", ZR_DENSE, ZR_RAW, 3);
    make_store("t//", ZR_DENSE, ZR_RAW, 3);
    make_store("./u/v/", ZR_DENSE, ZR_RAW, 3);
    check_store(at("s"), 3);
    check_store(at("t"), 3);
    check_store(at("u/v"), 3);
}
END_TEST

START_TEST(names_as_long_as_the_filesystem_takes)
{
    char name[256], other[256];
    memset(name, 'n', 255);
    name[255] = 0;
    strcpy(other, name);
    other[254] = 'x';
    struct zr_writer *a = create(at("%s", name)), *b = create(at("%s", other));
    append_rows(a, 0, 3);
    append_rows(b, 0, 4);
    expect_ok(zr_writer_close(a, &err));
    expect_ok(zr_writer_close(b, &err));
    check_store(at("%s", name), 3);
    check_store(at("%s", other), 4);
}
END_TEST

START_TEST(a_name_that_is_too_long_is_an_error_and_leaves_nothing)
{
    char name[300];
    memset(name, 'n', 299);
    name[299] = 0;
    expect_refused(at("new/%s", name), ZR_E_IO, "File name too long");
    ck_assert_uint_eq(entry_count(test_dir), 0);
}
END_TEST

START_TEST(names_of_any_bytes)
{
    make_store(at("a b\n\xff'\"*"), ZR_DENSE, ZR_RAW, 3);
    check_store(at("a b\n\xff'\"*"), 3);
}
END_TEST

/* ---------------------------------------------------------------- refused paths */

START_TEST(whatever_exists_at_the_path_is_kept)
{
    spit(at("file"), "x", 1);
    ck_assert(!mkdir(at("dir"), 0777) && !symlink("nowhere", at("link")));
    make_store(at("store"), ZR_DENSE, ZR_RAW, 3);
    expect_refused(at("file"), ZR_E_EXISTS, "file: already exists");
    expect_refused(at("dir"), ZR_E_EXISTS, "dir: already exists");
    expect_refused(at("link"), ZR_E_EXISTS, "link: already exists");
    expect_refused(at("store"), ZR_E_EXISTS, "store: already exists");
    expect_refused(at("."), ZR_E_EXISTS, "already exists");
    expect_refused(at(".."), ZR_E_EXISTS, "already exists");
    expect_refused("/", ZR_E_EXISTS, "already exists");
    ck_assert_uint_eq(entry_count(test_dir), 4);
    check_store(at("store"), 3);
}
END_TEST

START_TEST(a_parent_that_is_a_file_is_an_error)
{
    spit(at("file"), "x", 1);
    expect_refused(at("file/s"), ZR_E_IO, "Not a directory");
    expect_refused(at("file/deeper/s"), ZR_E_IO, "Not a directory");
}
END_TEST

START_TEST(no_permission_says_so_and_leaves_nothing)
{
    if (geteuid() != 0)
        skip_test("needs root to become nobody");
    chmod(test_dir, 0755);
    ck_assert(!mkdir(at("d"), 0755) && !seteuid(65534));
    expect_refused(at("d/s"), ZR_E_PERMISSION, "Permission denied");
    expect_refused(at("d/new/s"), ZR_E_PERMISSION, "Permission denied");
    ck_assert(!seteuid(0));
    ck_assert_uint_eq(entry_count(at("d")), 0);
}
END_TEST

START_TEST(a_path_taken_meanwhile_is_not_replaced)
{
    struct zr_writer *w = create(at("s"));
    append_rows(w, 0, 3);
    ck_assert(!mkdir(at("s"), 0777));
    expect_error(zr_writer_close(w, &err), ZR_E_EXISTS, "already exists");
    ck_assert_uint_eq(entry_count(test_dir), 1);
    ck_assert_uint_eq(entry_count(at("s")), 0);
}
END_TEST

START_TEST(a_folder_that_vanishes_before_close_is_an_error)
{
    struct zr_writer *w = create(at("d/s"));
    append_rows(w, 0, 3);
    remove_tree(at("d"));
    expect_error(zr_writer_close(w, &err), ZR_E_NOT_FOUND, "cannot publish");
    ck_assert_uint_eq(entry_count(test_dir), 0);
}
END_TEST

/* ---------------------------------------------------------------- refused options */

START_TEST(options_that_make_no_store_are_refused_before_anything_is_made)
{
    const uint64_t zero[] = {3, 0}, over[] = {((uint64_t)1 << 31) + 1},
                   wraps[] = {(uint64_t)1 << 40, (uint64_t)1 << 40};
    uint64_t wide[64];
    char dict[] = "some bytes to be a dictionary";
    for (int i = 0; i < 64; i++)
        wide[i] = 1;
    const struct {
        struct zr_writer_options o;
        int code;
        const char *why;
    } bad[] = {
        {{.geometry = 2, .dtype = "<i4"}, ZR_E_INVALID, "geometry 2"},
        {{.codec = 3, .dtype = "<i4"}, ZR_E_INVALID, "codec 3"},
        {{.codec = -1, .dtype = "<i4"}, ZR_E_INVALID, "codec -1"},
        {{.tune = 3, .codec = ZR_ZSTD, .dtype = "<i4"}, ZR_E_INVALID, "tune 3"},
        {{.level = 1, .dtype = "<i4"}, ZR_E_INVALID, "no level 1"},
        {{.codec = ZR_ZSTD, .level = 23, .dtype = "<i4"}, ZR_E_INVALID, "no level 23"},
        {{.codec = ZR_ZSTD, .level = -200000, .dtype = "<i4"}, ZR_E_INVALID, "no level"},
        {{.codec = ZR_ZSTD_DICT, .dtype = "<i4"}, ZR_E_INVALID, "needs a dictionary"},
        {{.codec = ZR_ZSTD_DICT, .dict = dict, .dtype = "<i4"}, ZR_E_INVALID, "dictionary"},
        {{.codec = ZR_ZSTD, .dict = dict, .dict_nbytes = 9, .dtype = "<i4"},
         ZR_E_INVALID,
         "zstd_dict only"},
        {{.dtype = NULL}, ZR_E_SCHEMA, "no dtype"},
        {{.dtype = "|O"}, ZR_E_SCHEMA, "object"},
        {{.dtype = "[('a', '<i4')]"}, ZR_E_SCHEMA, "byte order"},
        {{.dtype = "|S0"}, ZR_E_SCHEMA, "size"},
        {{.dtype = "<i4", .ndim = 2, .item_shape = zero}, ZR_E_SCHEMA, "no bytes"},
        {{.dtype = "|u1", .ndim = 1, .item_shape = over}, ZR_E_SCHEMA, "2 GiB"},
        {{.dtype = "|u1", .ndim = 2, .item_shape = wraps}, ZR_E_SCHEMA, "2 GiB"},
        {{.dtype = "|u1", .ndim = 64, .item_shape = wide}, ZR_E_SCHEMA, "64 dim"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        expect_no_writer(at("new/s"), &bad[i].o, bad[i].code, bad[i].why);
        expect_no_writer(at("new/s"), &bad[i].o, bad[i].code, "new/s: ");
    }
    ck_assert_uint_eq(entry_count(test_dir), 0);
    expect_refused("", ZR_E_INVALID, "empty");
    expect_refused(NULL, ZR_E_INVALID, "empty");
}
END_TEST

START_TEST(a_dictionary_that_zstd_cannot_load_is_refused)
{
    struct zr_writer_options o = options_for(ZR_DENSE, ZR_ZSTD_DICT);
    o.dict_nbytes = 40;
    expect_no_writer(at("s"), &o, ZR_E_DICT, "not a dictionary");
    ck_assert_uint_eq(entry_count(test_dir), 0);
}
END_TEST

/* ---------------------------------------------------------------- contention */

START_TEST(two_writers_of_one_path_exclude_each_other)
{
    struct zr_writer *w = create(at("s"));
    append_rows(w, 0, 3);
    expect_refused(at("s"), ZR_E_BUSY, "another writer is building this store");
    append_rows(w, 3, 3);
    expect_ok(zr_writer_close(w, &err));
    check_store(at("s"), 6);
    expect_refused(at("s"), ZR_E_EXISTS, "already exists");
}
END_TEST

START_TEST(after_an_abort_the_path_is_free)
{
    zr_writer_abort(create(at("s")));
    struct zr_writer *w = create(at("s"));
    append_rows(w, 0, 2);
    expect_ok(zr_writer_close(w, &err));
    check_store(at("s"), 2);
}
END_TEST

static pid_t start_child_that_waits(int *gate)
{
    int ends[2];
    char byte;
    ck_assert(!pipe(ends));
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit((int)read(ends[0], &byte, 1));
    }
    close(ends[0]);
    *gate = ends[1];
    return child;
}

/* The child has copies of all descriptors, and their locks. */
/* What a child's exit handlers may do to a copy of the writer. */
static void end_writer_in_child(struct zr_writer *w, bool closes)
{
    struct zr_error err = {0};
    uint8_t row[ROW_NBYTES] = {0};
    int rc = zr_writer_append_dense(w, row, 1, &err);
    bool refused = rc == ZR_E_STATE && strstr(err.message, "fork");
    if (closes)
        refused &= zr_writer_close(w, &err) == ZR_E_STATE;
    else
        zr_writer_abort(w);
    _exit(!refused);
}

START_TEST(a_forked_child_cannot_touch_the_build)
{
    struct zr_writer_options o = options_for(ZR_DENSE, ZR_RAW);
    struct zr_writer *w, *other;
    int status;
    expect_ok(zr_writer_create(&w, at("s"), &o, &err));
    append_rows(w, 0, 5);
    for (int closes = 0; closes < 2; closes++) {
        pid_t child = fork();
        if (child == 0)
            end_writer_in_child(w, closes);
        ck_assert(waitpid(child, &status, 0) == child && status == 0);
        expect_error(zr_writer_create(&other, at("s"), &o, &err), ZR_E_BUSY, "busy");
    }
    append_rows(w, 5, 5);
    expect_ok(zr_writer_close(w, &err));
    struct zr_reader *r = open_store(at("s"));
    check_all_records(r, 10);
    zr_reader_close(r);
}
END_TEST

START_TEST(a_store_published_while_a_forked_child_lives_is_not_busy)
{
    int gate;
    struct zr_writer *w = create(at("s"));
    append_rows(w, 0, 10);
    pid_t child = start_child_that_waits(&gate);
    expect_ok(zr_writer_close(w, &err));
    check_store(at("s"), 10);
    w = create(at("t"));
    pid_t second = start_child_that_waits(&(int){0});
    zr_writer_abort(w);
    zr_writer_abort(create(at("t"))); /* nor is the path of an aborted one */
    close(gate);
    kill(second, SIGKILL);
    waitpid(child, NULL, 0);
    waitpid(second, NULL, 0);
}
END_TEST

static void kill_a_writer(void)
{
    pid_t child = fork();
    if (child == 0) {
        struct zr_writer_options o = options_for(ZR_DENSE, ZR_ZSTD_DICT);
        struct zr_writer *w;
        uint8_t row[ROW_NBYTES] = {0};
        zr_writer_create(&w, at("s"), &o, NULL);
        zr_writer_append_dense(w, row, 1, NULL);
        kill(getpid(), SIGKILL);
    }
    int status;
    ck_assert(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

START_TEST(what_a_killed_writer_left_is_cleared_by_the_next)
{
    options_for(ZR_DENSE, ZR_ZSTD_DICT); /* trains before the fork */
    kill_a_writer();
    ck_assert(exists(at(".s.zrecord-build/dict.zr")) && !exists(at("s")));
    struct zr_writer *w = create(at("s")); /* of another codec, without dictionary */
    append_rows(w, 0, 5);
    expect_ok(zr_writer_close(w, &err));
    check_store(at("s"), 5);
    ck_assert(!exists(at("s/dict.zr")));
    ck_assert_uint_eq(entry_count(test_dir), 1);
}
END_TEST

START_TEST(what_a_killed_writer_left_goes_when_the_next_aborts)
{
    options_for(ZR_DENSE, ZR_ZSTD_DICT);
    kill_a_writer();
    zr_writer_abort(create(at("s")));
    ck_assert_uint_eq(entry_count(test_dir), 0);
}
END_TEST

START_TEST(many_processes_racing_for_one_path_give_one_store)
{
    enum { RACERS = 12 };
    pid_t child[RACERS];
    int published = 0;
    for (int i = 0; i < RACERS; i++)
        if ((child[i] = fork()) == 0) {
            struct zr_writer_options o = options_for(ZR_DENSE, ZR_RAW);
            struct zr_writer *w;
            uint8_t rows[20 * ROW_NBYTES];
            for (uint64_t id = 0; id < 20; id++)
                fill_record(id, rows + id * ROW_NBYTES, ROW_NBYTES);
            int rc = zr_writer_create(&w, at("s"), &o, NULL);
            if (!rc)
                rc = zr_writer_append_dense(w, rows, 20, NULL);
            if (!rc)
                rc = zr_writer_close(w, NULL);
            _exit(rc == ZR_OK ? 0 : rc == ZR_E_BUSY || rc == ZR_E_EXISTS ? 1 : 2);
        }
    for (int i = 0; i < RACERS; i++) {
        int status;
        ck_assert(waitpid(child[i], &status, 0) == child[i] && WIFEXITED(status));
        ck_assert_int_ne(WEXITSTATUS(status), 2);
        published += WEXITSTATUS(status) == 0;
    }
    ck_assert_int_eq(published, 1);
    ck_assert_uint_eq(entry_count(test_dir), 1);
    check_store(at("s"), 20);
}
END_TEST

/* ---------------------------------------------------------------- a full disk */

/* A tmpfs of that size at test_dir/small, seen by this process alone. */
static bool mount_small_disk(const char *options)
{
    return !mkdir(at("small"), 0777) && !unshare(CLONE_NEWNS) &&
           !mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) &&
           !mount("tmpfs", at("small"), "tmpfs", 0, options);
}

/* Where the last block that was begun is what does not fit, close tells. */
static void fill_small_disk(int geometry, int codec, uint64_t count, bool by_close)
{
    struct zr_writer_options o = options_for(geometry, codec);
    struct zr_writer *w;
    struct zr_error e;
    uint8_t *rows = malloc(count * ROW_NBYTES);
    unsigned seed = 3;
    for (size_t i = 0; i < count * ROW_NBYTES; i++)
        rows[i] = (uint8_t)(rand_r(&seed) >> 7);
    const uint64_t shape = count * ROW_NBYTES;
    struct zr_item item = {rows, &shape, 1};
    o.durability = ZR_DURABLE;
    expect_ok(zr_writer_create(&w, at("small/s"), &o, &err));
    int rc = geometry == ZR_DENSE ? zr_writer_append_dense(w, rows, count, &e)
                                  : zr_writer_append_ragged(w, &item, 1, &e);
    ck_assert_int_eq(rc, by_close ? ZR_OK : ZR_E_NO_SPACE);
    if (by_close)
        ck_assert_int_eq(zr_writer_close(w, &e), ZR_E_NO_SPACE);
    else
        zr_writer_abort(w);
    ck_assert_int_eq(e.sys_errno, ENOSPC);
    ck_assert_ptr_nonnull(strstr(e.message, "small/s: cannot write its data.zr: No space left"));
    ck_assert_uint_eq(entry_count(at("small")), 0);
    free(rows);
}

START_TEST(a_full_disk_is_reported_and_leaves_nothing)
{
    if (geteuid() != 0)
        skip_test("needs root to mount a small disk");
    if (!mount_small_disk("size=2m"))
        skip_test("no private mounts here");
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++) {
        fill_small_disk(geometry, ZR_RAW, 20000, false); /* reserved beforehand */
        fill_small_disk(geometry, ZR_ZSTD, 40000, false);
        fill_small_disk(geometry, ZR_ZSTD, 20000, true);
    }
    umount2(at("small"), MNT_DETACH);
}
END_TEST

START_TEST(a_disk_without_inodes_is_reported_by_create)
{
    if (geteuid() != 0)
        skip_test("needs root to mount a small disk");
    if (!mount_small_disk("size=2m,nr_inodes=4"))
        skip_test("no private mounts here");
    expect_refused(at("small/s"), ZR_E_NO_SPACE, "No space left on device");
    ck_assert_uint_eq(entry_count(at("small")), 0);
    umount2(at("small"), MNT_DETACH);
}
END_TEST

START_TEST(a_read_only_filesystem_is_a_matter_of_permission)
{
    if (geteuid() != 0)
        skip_test("needs root to mount a small disk");
    if (!mount_small_disk("size=2m"))
        skip_test("no private mounts here");
    ck_assert(!mount("none", at("small"), "none", MS_REMOUNT | MS_RDONLY, NULL));
    expect_refused(at("small/s"), ZR_E_PERMISSION, "Read-only file system");
    umount2(at("small"), MNT_DETACH);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        nothing_is_at_the_path_until_close,
        the_hidden_build_does_not_open,
        a_published_store_has_exactly_its_files,
        files_end_where_their_records_end,
        durable_stores_publish_too,
        missing_parents_are_made,
        aborting_removes_everything_that_create_made,
        relative_paths_and_trailing_slashes,
        names_as_long_as_the_filesystem_takes,
        a_name_that_is_too_long_is_an_error_and_leaves_nothing,
        names_of_any_bytes,
        whatever_exists_at_the_path_is_kept,
        a_parent_that_is_a_file_is_an_error,
        no_permission_says_so_and_leaves_nothing,
        a_path_taken_meanwhile_is_not_replaced,
        a_folder_that_vanishes_before_close_is_an_error,
        options_that_make_no_store_are_refused_before_anything_is_made,
        a_dictionary_that_zstd_cannot_load_is_refused,
        two_writers_of_one_path_exclude_each_other,
        after_an_abort_the_path_is_free,
        a_forked_child_cannot_touch_the_build,
        a_store_published_while_a_forked_child_lives_is_not_busy,
        what_a_killed_writer_left_is_cleared_by_the_next,
        what_a_killed_writer_left_goes_when_the_next_aborts,
        many_processes_racing_for_one_path_give_one_store,
        a_full_disk_is_reported_and_leaves_nothing,
        a_disk_without_inodes_is_reported_by_create,
        a_read_only_filesystem_is_a_matter_of_permission,
    };
    return run_tests("writer", tests, COUNT(tests), 60);
}
