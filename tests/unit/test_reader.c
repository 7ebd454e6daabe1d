/* SPDX-License-Identifier: MIT
 *
 * Opening stores, sound and not, and what is known of them (engine/reader.c).
 */
#include <sys/file.h>
#include <sys/resource.h>

#include "support.h"

enum { N = 20 };

static const char *dense(int codec)
{
    make_store(at("s"), ZR_DENSE, codec, N);
    return at("s");
}

static const char *bare(int codec)
{
    make_bare_store(at("s"), ZR_DENSE, codec, N);
    return at("s");
}

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

/* ---------------------------------------------------------------- truncated */

START_TEST(meta_cut_at_every_length_is_truncated)
{
    dense(ZR_ZSTD);
    uint64_t full = file_nbytes(at("s/meta.zr"));
    ck_assert_uint_eq(full, 4096 + N * 16);
    while (full--) {
        cut(at("s/meta.zr"), full);
        expect_no_store(at("s"), ZR_E_TRUNCATED, "meta.zr: file is cut short");
    }
}
END_TEST

START_TEST(data_cut_at_every_length_is_truncated)
{
    dense(ZR_ZSTD);
    uint64_t full = file_nbytes(at("s/data.zr"));
    while (full--) {
        cut(at("s/data.zr"), full);
        expect_no_store(at("s"), ZR_E_TRUNCATED, "data.zr: file is cut short");
    }
}
END_TEST

START_TEST(a_page_of_zeros_was_never_finished)
{
    uint8_t zeros[4096] = {0};
    dense(ZR_RAW);
    patch(at("s/meta.zr"), 0, zeros, sizeof zeros);
    expect_no_store(at("s"), ZR_E_FORMAT, "never finished");
}
END_TEST

START_TEST(longer_files_than_the_header_says_are_fine)
{
    dense(ZR_ZSTD);
    cut(at("s/data.zr"), file_nbytes(at("s/data.zr")) + 1000);
    cut(at("s/meta.zr"), file_nbytes(at("s/meta.zr")) + 1000);
    struct zr_reader *r = open_store(at("s"));
    check_all_records(r, N);
    zr_reader_close(r);
}
END_TEST

/* ---------------------------------------------------------------- damaged */

START_TEST(every_damaged_header_field_is_named)
{
    static const struct {
        uint64_t off;
        uint32_t value;
        int code;
        const char *why;
    } damage[] = {{0, N + 1, ZR_E_TRUNCATED, "table of 21 records"},
                  {4, 1, ZR_E_TRUNCATED, "table of"},
                  {12, 1, ZR_E_TRUNCATED, "data.zr: file is cut short"},
                  {16, 0, ZR_E_FORMAT, "never finished"},
                  {16, 4065, ZR_E_FORMAT, "schema length"},
                  {16, 5, ZR_E_FORMAT, "padding"},
                  {16, 60, ZR_E_SCHEMA, "after its map"},
                  {20, 1, ZR_E_FORMAT, "reserved"},
                  {27, 1, ZR_E_FORMAT, "reserved"},
                  {31, 7, ZR_E_FORMAT, "codec"},
                  {32, 0xffffffff, ZR_E_SCHEMA, "schema"},
                  {4092, 1, ZR_E_FORMAT, "padding"}};
    dense(ZR_ZSTD);
    for (size_t i = 0; i < COUNT(damage); i++) {
        copy_file(at("s/meta.zr"), at("good"));
        if (damage[i].off == 31)
            patch(at("s/meta.zr"), 31, "\7", 1);
        else
            patch32(at("s/meta.zr"), damage[i].off, damage[i].value);
        expect_no_store(at("s"), damage[i].code, damage[i].why);
        expect_no_store(at("s"), damage[i].code, at("s/"));
        copy_file(at("good"), at("s/meta.zr"));
    }
    zr_reader_close(open_store(at("s")));
}
END_TEST

/* Whatever byte of the page is hit: refused, or read without harm. */
START_TEST(any_flipped_byte_of_the_page_is_survived)
{
    bare(ZR_ZSTD);
    for (uint64_t off = 0; off < 100; off++) {
        struct zr_reader *r;
        struct zr_error err;
        flip(at("s/meta.zr"), off);
        if (zr_reader_open(&r, at("s"), NULL, &err) == ZR_OK) {
            uint64_t id = 0;
            uint8_t *out = malloc(r->schema.row_nbytes + 1);
            if (r->schema.geometry == ZR_DENSE && r->header.length)
                zr_gather_dense(r, &id, 1, out, r->schema.row_nbytes, NULL);
            free(out);
            zr_reader_close(r);
        } else {
            ck_assert_msg(strstr(err.message, "/s"), "%s", err.message);
        }
        flip(at("s/meta.zr"), off);
    }
}
END_TEST

static void set_schema(const char *schema, uint32_t nbytes)
{
    uint8_t zeros[4064] = {0};
    patch(at("s/meta.zr"), 32, zeros, sizeof zeros);
    patch(at("s/meta.zr"), 32, schema, nbytes);
    patch32(at("s/meta.zr"), 16, nbytes);
}

START_TEST(schemas_that_no_store_may_have_are_refused)
{
    bare(ZR_RAW);
#define REFUSED(bytes, why)                                                                        \
    set_schema(bytes, sizeof bytes - 1);                                                           \
    expect_no_store(at("s"), ZR_E_SCHEMA, why)
    REFUSED("\x81\xa5"
            "dtype\xa2|O",
            "object");
    REFUSED("\x81\xa5"
            "dtype\x91\x92\xa1"
            "a\xa3<i4",
            "meta.zr: schema dtype is not a string");
    REFUSED("\x82\xa5"
            "dtype\xa3<i4\xaaitem_shape\x91\0",
            "no bytes");
    REFUSED("\x82\xa5"
            "dtype\xa3<i4\xa8metadata\x80",
            "neither");
    REFUSED("\xdf\xff\xff\xff\xff", "not a map");
    REFUSED("\xc1", "not a map");
#undef REFUSED
}
END_TEST

START_TEST(a_loaderx_2_8_store_is_recognised)
{
    dense(ZR_RAW);
    ck_assert(!rename(at("s/data.zr"), at("s/data_0.zr")));
    spit(at("s/data_1.zr"), "x", 1);
    expect_no_store(at("s"), ZR_E_FOREIGN, "loaderx 2.8");
    cut(at("s/meta.zr"), 100);
    expect_no_store(at("s"), ZR_E_FOREIGN, "not supported");
    unlink(at("s/meta.zr"));
    expect_no_store(at("s"), ZR_E_FOREIGN, "/s: ");
}
END_TEST

/* ---------------------------------------------------------------- dictionaries */

START_TEST(a_missing_dictionary_is_named)
{
    dense(ZR_ZSTD_DICT);
    unlink(at("s/dict.zr"));
    expect_no_store(at("s"), ZR_E_DICT, "dict.zr: missing");
}
END_TEST

START_TEST(an_unexpected_dictionary_is_refused)
{
    dense(ZR_ZSTD);
    spit(at("s/dict.zr"), "x", 1);
    expect_no_store(at("s"), ZR_E_DICT, "dict.zr: unexpected");
}
END_TEST

START_TEST(an_empty_or_broken_dictionary_is_refused)
{
    bare(ZR_ZSTD_DICT);
    cut(at("s/dict.zr"), 40);
    expect_no_store(at("s"), ZR_E_DICT, "not a dictionary that zstd can load");
    cut(at("s/dict.zr"), 0);
    expect_no_store(at("s"), ZR_E_DICT, "0 bytes");
    cut(at("s/dict.zr"), ((uint64_t)1 << 30) + 1); /* refused before it is read */
    expect_no_store(at("s"), ZR_E_DICT, "1073741825 bytes");
}
END_TEST

START_TEST(the_wrong_dictionary_is_noticed_by_its_id)
{
    bare(ZR_ZSTD_DICT);
    flip(at("s/dict.zr"), 4);
    expect_no_store(at("s"), ZR_E_DICT, "not the one that the records were written with");
}
END_TEST

START_TEST(a_changed_dictionary_of_the_same_id_is_noticed_by_the_sidecar)
{
    dense(ZR_ZSTD_DICT);
    flip(at("s/dict.zr"), file_nbytes(at("s/dict.zr")) - 10);
    expect_no_store(at("s"), ZR_E_DICT, "not the one that the records were written with");
}
END_TEST

/* ---------------------------------------------------------------- sidecars */

static void expect_ignored_sidecar(const char *why)
{
    struct zr_reader *r = open_with(at("s"), ZR_ACCESS_MAP, true);
    ck_assert(!r->has_sidecar);
    ck_assert_ptr_nonnull(zr_reader_warning(r));
    ck_assert_msg(strstr(zr_reader_warning(r), why), "%s", zr_reader_warning(r));
    ck_assert_ptr_nonnull(strstr(zr_reader_warning(r), "side.zr"));
    check_all_records(r, N);
    zr_reader_close(r);
}

START_TEST(a_sidecar_of_another_store_is_ignored_with_a_warning)
{
    make_store(at("other"), ZR_DENSE, ZR_ZSTD, N + 1);
    dense(ZR_ZSTD);
    copy_file(at("other/side.zr"), at("s/side.zr"));
    expect_ignored_sidecar("another store");
}
END_TEST

START_TEST(a_sidecar_after_the_table_changed_is_ignored)
{
    dense(ZR_ZSTD);
    uint8_t a[16], b[16];
    int fd = open(at("s/meta.zr"), O_RDWR);
    ck_assert(pread(fd, a, 16, 4096) == 16 && pread(fd, b, 16, 4112) == 16);
    ck_assert(pwrite(fd, b, 16, 4096) == 16);
    struct zr_reader *r = open_store(at("s"));
    ck_assert(!r->has_sidecar);
    zr_reader_close(r);
    ck_assert(pwrite(fd, a, 16, 4096) == 16);
    close(fd);
}
END_TEST

START_TEST(a_damaged_sidecar_is_ignored_with_a_warning)
{
    dense(ZR_ZSTD);
    flip(at("s/side.zr"), 20);
    expect_ignored_sidecar("damaged");
    flip(at("s/side.zr"), 0);
    expect_ignored_sidecar("not a sidecar");
}
END_TEST

START_TEST(a_sidecar_cut_at_any_length_is_ignored_with_a_warning)
{
    dense(ZR_ZSTD);
    uint64_t full = file_nbytes(at("s/side.zr"));
    while (full--) {
        cut(at("s/side.zr"), full);
        expect_ignored_sidecar("sidecar ignored: ");
    }
}
END_TEST

START_TEST(a_sidecar_that_is_no_file_is_ignored_with_a_warning)
{
    dense(ZR_ZSTD);
    unlink(at("s/side.zr"));
    ck_assert(!mkdir(at("s/side.zr"), 0777));
    expect_ignored_sidecar("sidecar ignored: ");
}
END_TEST

START_TEST(a_store_without_sidecar_has_no_warning)
{
    struct zr_reader *r = open_store(bare(ZR_ZSTD));
    ck_assert(!r->has_sidecar && !zr_reader_warning(r));
    zr_reader_close(r);
}
END_TEST

/* ---------------------------------------------------------------- entries */

START_TEST(locating_ids_out_of_range_fails_and_touches_nothing)
{
    static const uint64_t bad[] = {
        N, N + 1, (uint64_t)1 << 32, UINT64_MAX / 16, UINT64_MAX - 1, UINT64_MAX};
    struct zr_reader *r = open_store(dense(ZR_RAW));
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct zr_location loc = {7, 7, 7};
        expect_error(zr_reader_locate(r, bad[i], &loc, &err), ZR_E_RANGE, "out of range");
        ck_assert(loc.data_off == 7 && loc.phys_nbytes == 7 && loc.logic_nbytes == 7);
    }
    zr_reader_close(r);
}
END_TEST

START_TEST(located_records_are_where_they_lie)
{
    struct zr_reader *r = open_store(dense(ZR_RAW));
    uint8_t *data = slurp(at("s/data.zr"), NULL);
    for (uint64_t id = 0; id < N; id++) {
        struct zr_location loc;
        expect_ok(zr_reader_locate(r, id, &loc, &err));
        ck_assert(loc.phys_nbytes == ROW_NBYTES && loc.logic_nbytes == ROW_NBYTES);
        ck_assert(is_record(id, data + loc.data_off, ROW_NBYTES));
    }
    free(data);
    zr_reader_close(r);
}
END_TEST

START_TEST(a_damaged_entry_fails_that_record_alone)
{
    static const struct {
        uint64_t field; /* offset in the entry */
        uint32_t value;
        const char *why;
    } damage[] = {{4, 1, "past the end"},          {0, 0xffffffff, "past the end"},
                  {8, 0xffffffff, "past the end"}, {8, 0, "zero length"},
                  {12, 0, "zero length"},          {12, 0xffffffff, "2 GiB"},
                  {12, ROW_NBYTES + 1, "schema"}};
    bare(ZR_ZSTD);
    for (size_t i = 0; i < COUNT(damage); i++)
        for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
            copy_file(at("s/meta.zr"), at("good"));
            patch32(at("s/meta.zr"), 4096 + 7 * 16 + damage[i].field, damage[i].value);
            struct zr_reader *r = open_with(at("s"), access, false);
            struct zr_location loc;
            expect_error(zr_reader_locate(r, 7, &loc, &err), ZR_E_CORRUPT, damage[i].why);
            expect_error(zr_reader_locate(r, 7, &loc, &err), ZR_E_CORRUPT, "meta.zr: record 7: ");
            expect_error(gather_one(r, 7, &err), ZR_E_CORRUPT, damage[i].why);
            expect_ok(gather_one(r, 6, &err));
            expect_ok(gather_one(r, 8, &err));
            zr_reader_close(r);
            copy_file(at("good"), at("s/meta.zr"));
        }
}
END_TEST

START_TEST(a_table_that_cannot_be_read_names_the_record)
{
    struct zr_location loc;
    struct zr_error e = {0};
    dense(ZR_RAW);
    struct zr_reader *r = open_with(at("s"), ZR_ACCESS_READ, false);
    int fd = open(at("s"), O_RDONLY | O_DIRECTORY); /* reading a folder fails: EISDIR */
    ck_assert(dup2(fd, r->meta.fd) == r->meta.fd);
    ck_assert_int_eq(zr_reader_locate(r, 7, &loc, &e), ZR_E_IO);
    ck_assert(e.record == 7 && e.offset == 4096 + 16 * 7 && e.sys_errno == EISDIR);
    ck_assert_ptr_nonnull(strstr(e.message, "meta.zr: record 7: cannot read its table entry: "));
    zr_reader_close(r);
    close(fd);
}
END_TEST

START_TEST(a_table_cut_while_open_is_truncated_not_fatal)
{
    skip_lost_mappings();
    bare(ZR_RAW);
    for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
        struct zr_location loc;
        copy_file(at("s/meta.zr"), at("good"));
        struct zr_reader *r = open_with(at("s"), access, false);
        cut(at("s/meta.zr"), 4096 + 10 * 16);
        expect_error(zr_reader_locate(r, 10, &loc, &err), ZR_E_TRUNCATED, "record 10: ");
        expect_error(gather_one(r, N - 1, &err), ZR_E_TRUNCATED, "meta.zr");
        expect_ok(gather_one(r, 9, &err));
        cut(at("s/meta.zr"), 0);
        expect_error(zr_reader_locate(r, 9, &loc, &err), ZR_E_TRUNCATED, "record 9: ");
        zr_reader_close(r);
        copy_file(at("good"), at("s/meta.zr"));
    }
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

START_TEST(a_size_is_taken_again_under_the_lock)
{
    struct zri_file f;
    spit(at("f"), "12", 2);
    ck_assert_int_eq(zri_file_open(&f, AT_FDCWD, at("f")), 0);
    cut(at("f"), 100);
    ck_assert_uint_eq(f.nbytes, 2);
    ck_assert_int_eq(zri_file_update(&f), 0);
    ck_assert_uint_eq(f.nbytes, 100);
    zri_file_close(&f);
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
        meta_cut_at_every_length_is_truncated,
        data_cut_at_every_length_is_truncated,
        a_page_of_zeros_was_never_finished,
        longer_files_than_the_header_says_are_fine,
        every_damaged_header_field_is_named,
        any_flipped_byte_of_the_page_is_survived,
        schemas_that_no_store_may_have_are_refused,
        a_loaderx_2_8_store_is_recognised,
        a_missing_dictionary_is_named,
        an_unexpected_dictionary_is_refused,
        an_empty_or_broken_dictionary_is_refused,
        the_wrong_dictionary_is_noticed_by_its_id,
        a_changed_dictionary_of_the_same_id_is_noticed_by_the_sidecar,
        a_sidecar_of_another_store_is_ignored_with_a_warning,
        a_sidecar_after_the_table_changed_is_ignored,
        a_damaged_sidecar_is_ignored_with_a_warning,
        a_sidecar_cut_at_any_length_is_ignored_with_a_warning,
        a_sidecar_that_is_no_file_is_ignored_with_a_warning,
        a_store_without_sidecar_has_no_warning,
        locating_ids_out_of_range_fails_and_touches_nothing,
        located_records_are_where_they_lie,
        a_damaged_entry_fails_that_record_alone,
        a_table_that_cannot_be_read_names_the_record,
        a_table_cut_while_open_is_truncated_not_fatal,
        without_address_space_for_a_mapping_pread_serves,
        a_size_is_taken_again_under_the_lock,
        too_many_open_files_is_an_error_in_words,
    };
    return run_tests("reader", tests, COUNT(tests), 60);
}
