/* SPDX-License-Identifier: MIT
 *
 * Opening stores, and what is known of them (engine/reader.c).
 */
#include <sys/file.h>
#include <sys/resource.h>

#include "reader_stores.h"

/* ---------------------------------------------------------------- sound stores */

START_TEST(every_kind_of_store_opens_and_reads)
{
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++)
            for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++)
                for (int is_bare = 0; is_bare < 2; is_bare++) {
                    const char *path = at("s%d%d%d%d", geometry, codec, access, is_bare);
                    struct zr_writer_options o = options_for(geometry, codec);
                    o.no_sidecar = is_bare;
                    make_store_with(path, &o, 300);
                    struct zr_reader *r = open_with(path, access, true);
                    ck_assert_ptr_null(zr_reader_warning(r));
                    check_all_records(r, 300);
                    zr_reader_close(r);
                }
}
END_TEST

START_TEST(info_tells_what_the_store_is)
{
    struct zr_info i;
    struct zr_reader *r = open_store(dense(ZR_ZSTD_DICT));
    zr_reader_info(r, &i);
    ck_assert_str_eq(i.path, at("s"));
    ck_assert_str_eq(i.dtype, "|u1");
    ck_assert(i.geometry == ZR_DENSE && i.codec == ZR_ZSTD_DICT && i.length == N);
    ck_assert(i.itemsize == 1 && i.ndim == 2 && i.item_shape[0] == 10 && i.item_shape[1] == 20);
    ck_assert_uint_eq(i.row_nbytes, ROW_NBYTES);
    ck_assert_uint_eq(i.data_nbytes, file_nbytes(at("s/data.zr")));
    ck_assert_uint_gt(i.disk_nbytes, 0);
    ck_assert_uint_eq(i.dict_nbytes, file_nbytes(at("s/dict.zr")));
    ck_assert(i.dict && i.has_sidecar && i.mtime_sec > 0 && i.identity);
    zr_reader_close(r);
}
END_TEST

START_TEST(info_of_a_ragged_store_has_no_shape)
{
    struct zr_info i;
    make_bare_store(at("s"), ZR_RAGGED, ZR_RAW, N);
    struct zr_reader *r = open_store(at("s"));
    zr_reader_info(r, &i);
    ck_assert(i.geometry == ZR_RAGGED && !i.item_shape && !i.row_nbytes && !i.ndim);
    ck_assert(!i.dict && !i.dict_nbytes && !i.has_sidecar);
    zr_reader_close(r);
}
END_TEST

START_TEST(an_empty_store_opens_with_length_0)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++) {
        make_store(at("s%d", codec), ZR_DENSE, codec, 0);
        struct zr_reader *r = open_store(at("s%d", codec));
        struct zr_location loc;
        ck_assert_uint_eq(r->header.length, 0);
        ck_assert_ptr_null(zr_reader_warning(r));
        expect_ok(zr_gather_dense(r, NULL, 0, NULL, 0, &err));
        expect_error(zr_reader_locate(r, 0, &loc, &err), ZR_E_RANGE, "the store has 0");
        zr_reader_close(r);
    }
}
END_TEST

START_TEST(another_store_at_the_path_has_another_identity)
{
    struct zr_info a, b, c;
    struct zr_reader *r = open_store(dense(ZR_ZSTD));
    zr_reader_info(r, &a);
    zr_reader_close(r);
    r = open_store(at("s"));
    zr_reader_info(r, &b);
    zr_reader_close(r);
    make_store(at("t"), ZR_DENSE, ZR_ZSTD, N + 1);
    r = open_store(at("t"));
    zr_reader_info(r, &c);
    zr_reader_close(r);
    ck_assert_uint_eq(a.identity, b.identity);
    ck_assert_uint_ne(a.identity, c.identity);
}
END_TEST

START_TEST(closing_null_does_nothing)
{
    zr_reader_close(NULL);
}
END_TEST

START_TEST(images_in_memory_open_like_files)
{
    struct zri_image meta, data, side;
    struct zr_reader *r;
    dense(ZR_ZSTD);
    meta.bytes = slurp(at("s/meta.zr"), &meta.nbytes);
    data.bytes = slurp(at("s/data.zr"), &data.nbytes);
    side.bytes = slurp(at("s/side.zr"), &side.nbytes);
    expect_ok(zri_reader_open_images(&r, &meta, &data, NULL, &side, NULL, &err));
    check_all_records(r, N);
    zr_reader_close(r);
    free((void *)(uintptr_t)meta.bytes);
    free((void *)(uintptr_t)data.bytes);
    free((void *)(uintptr_t)side.bytes);
}
END_TEST

START_TEST(symbolic_links_are_followed)
{
    dense(ZR_RAW);
    ck_assert(!symlink(at("s"), at("link")));
    struct zr_reader *r = open_store(at("link"));
    check_all_records(r, N);
    zr_reader_close(r);
}
END_TEST

/* ---------------------------------------------------------------- paths */

START_TEST(a_missing_store_is_not_found)
{
    expect_no_store(at("none"), ZR_E_NOT_FOUND, "none: no such store");
    expect_no_store(at("none/deeper"), ZR_E_NOT_FOUND, "none/deeper");
    expect_no_store("", ZR_E_INVALID, "empty");
    expect_no_store(NULL, ZR_E_INVALID, "empty");
}
END_TEST

START_TEST(a_file_or_an_empty_folder_is_no_store)
{
    spit(at("file"), "x", 1);
    ck_assert(!mkdir(at("empty"), 0777));
    expect_no_store(at("file"), ZR_E_FORMAT, "a store is a directory");
    expect_no_store(at("file/x"), ZR_E_FORMAT, "file/x");
    expect_no_store(at("empty"), ZR_E_FORMAT, "it has no meta.zr");
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    dense(ZR_ZSTD);
    unlink(at("s/data.zr"));
    expect_no_store(at("s"), ZR_E_FORMAT, "it has no data.zr");
    unlink(at("s/meta.zr"));
    expect_no_store(at("s"), ZR_E_FORMAT, "it has no meta.zr");
}
END_TEST

START_TEST(what_is_no_regular_file_is_refused_without_waiting)
{
    dense(ZR_ZSTD);
    unlink(at("s/data.zr"));
    ck_assert(!mkfifo(at("s/data.zr"), 0666));
    expect_no_store(at("s"), ZR_E_FORMAT, "data.zr: not a regular file");
    unlink(at("s/data.zr"));
    ck_assert(!mkdir(at("s/data.zr"), 0777));
    expect_no_store(at("s"), ZR_E_FORMAT, "data.zr: not a regular file");
}
END_TEST

START_TEST(a_symbolic_link_loop_is_an_error)
{
    ck_assert(!symlink(at("loop"), at("loop")));
    expect_no_store(at("loop"), ZR_E_IO, "loop: cannot open");
}
END_TEST

START_TEST(no_permission_says_so)
{
    if (geteuid() != 0)
        skip_test("needs root to become nobody");
    dense(ZR_ZSTD);
    chmod(test_dir, 0755);
    ck_assert(!chmod(at("s/data.zr"), 0600) && !seteuid(65534));
    expect_no_store(at("s"), ZR_E_PERMISSION, "data.zr: cannot open: Permission denied");
    ck_assert(!seteuid(0) && !chmod(at("s"), 0700) && !seteuid(65534));
    expect_no_store(at("s"), ZR_E_PERMISSION, "s: cannot open: Permission denied");
    ck_assert(!seteuid(0));
}
END_TEST

START_TEST(a_store_that_others_may_only_read_opens)
{
    if (geteuid() != 0)
        skip_test("needs root to become nobody");
    dense(ZR_ZSTD);
    chmod(test_dir, 0755);
    ck_assert(!chmod(at("s/meta.zr"), 0444) && !chmod(at("s/data.zr"), 0444) && !seteuid(65534));
    struct zr_reader *r = open_store(at("s"));
    check_all_records(r, N);
    zr_reader_close(r);
    ck_assert(!seteuid(0));
}
END_TEST

/* ---------------------------------------------------------------- locks */

START_TEST(a_store_that_a_writer_holds_is_busy)
{
    dense(ZR_RAW);
    int fd = open(at("s/meta.zr"), O_RDWR);
    ck_assert(!flock(fd, LOCK_EX));
    expect_no_store(at("s"), ZR_E_BUSY, "busy");
    close(fd);
    zr_reader_close(open_store(at("s")));
}
END_TEST

START_TEST(readers_share_and_keep_writers_out)
{
    struct zr_reader *a = open_store(dense(ZR_RAW)), *b = open_store(at("s"));
    int fd = open(at("s/meta.zr"), O_RDWR);
    ck_assert(flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK);
    zr_reader_close(a);
    ck_assert(flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK);
    zr_reader_close(b);
    ck_assert(!flock(fd, LOCK_EX | LOCK_NB));
    close(fd);
}
END_TEST

START_TEST(a_failed_open_leaves_no_lock_and_no_descriptor)
{
    dense(ZR_ZSTD);
    cut(at("s/data.zr"), 3);
    int before = dup(0);
    for (int i = 0; i < 50; i++)
        expect_no_store(at("s"), ZR_E_TRUNCATED, "");
    int after = dup(0), fd = open(at("s/meta.zr"), O_RDWR);
    ck_assert_int_eq(after, before + 1);
    ck_assert(!flock(fd, LOCK_EX | LOCK_NB));
}
END_TEST

/* ---------------------------------------------------------------- surroundings */

START_TEST(without_address_space_for_a_mapping_pread_serves)
{
    skip_under(UNDER_ASAN || UNDER_TSAN, "sanitizers need the address space");
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    dense(ZR_ZSTD);
    cut(at("s/data.zr"), (uint64_t)4 << 30); /* sparse */
    ck_assert(!setrlimit(RLIMIT_AS, &limit));
    struct zr_reader *r = open_store(at("s"));
    ck_assert_ptr_null(r->data.bytes);
    check_all_records(r, N);
    zr_reader_close(r);
}
END_TEST

START_TEST(too_many_open_files_is_an_error_in_words)
{
    struct rlimit limit;
    dense(ZR_ZSTD);
    ck_assert(!getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 16;
    ck_assert(!setrlimit(RLIMIT_NOFILE, &limit));
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
    expect_no_store(at("s"), ZR_E_IO, "Too many open files");
    for (int fd = 10; fd < 16; fd++)
        close(fd);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        every_kind_of_store_opens_and_reads,
        info_tells_what_the_store_is,
        info_of_a_ragged_store_has_no_shape,
        an_empty_store_opens_with_length_0,
        another_store_at_the_path_has_another_identity,
        closing_null_does_nothing,
        images_in_memory_open_like_files,
        symbolic_links_are_followed,
        a_missing_store_is_not_found,
        a_file_or_an_empty_folder_is_no_store,
        a_missing_file_is_named,
        what_is_no_regular_file_is_refused_without_waiting,
        a_symbolic_link_loop_is_an_error,
        no_permission_says_so,
        a_store_that_others_may_only_read_opens,
        a_store_that_a_writer_holds_is_busy,
        readers_share_and_keep_writers_out,
        a_failed_open_leaves_no_lock_and_no_descriptor,
        without_address_space_for_a_mapping_pread_serves,
        too_many_open_files_is_an_error_in_words,
    };
    return run_tests("reader", tests, COUNT(tests), 60);
}
