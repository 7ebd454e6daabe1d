/* SPDX-License-Identifier: MIT
 *
 * Codes, names and messages (engine/error.c).
 */
#include "support.h"

START_TEST(every_code_has_its_own_name_text_and_errno)
{
    for (int code = ZR_OK; code >= ZR_E_NPY; code--) {
        ck_assert_ptr_nonnull(zr_code_name(code));
        ck_assert_str_ne(zr_code_name(code), "ZR_E_?");
        ck_assert(strlen(zr_code_text(code)) > 0);
        ck_assert((code == ZR_OK) == (zr_code_errno(code) == 0));
        for (int other = code + 1; other <= ZR_OK; other++)
            ck_assert_str_ne(zr_code_name(code), zr_code_name(other));
    }
}
END_TEST

START_TEST(code_numbers_never_change)
{
    ck_assert_int_eq(ZR_E_NOMEM, -1);
    ck_assert_int_eq(ZR_E_CORRUPT, -7);
    ck_assert_int_eq(ZR_E_BUSY, -13);
    ck_assert_int_eq(ZR_E_CHECKSUM, -18);
    ck_assert_int_eq(ZR_E_NPY, -23);
    ck_assert_str_eq(zr_code_name(-7), "ZR_E_CORRUPT");
    ck_assert_int_eq(zr_code_errno(ZR_E_CORRUPT), EIO);
}
END_TEST

START_TEST(unknown_codes_still_have_a_name)
{
    static const int unknown[] = {1, -24, 4711, -4711};
    for (size_t i = 0; i < COUNT(unknown); i++) {
        ck_assert_str_eq(zr_code_name(unknown[i]), "ZR_E_?");
        ck_assert(strlen(zr_code_text(unknown[i])) > 0);
        ck_assert_int_eq(zr_code_errno(unknown[i]), EIO);
    }
}
END_TEST

START_TEST(failing_without_an_error_object_only_returns_the_code)
{
    ck_assert_int_eq(zri_fail(NULL, ZR_E_RANGE, "x"), ZR_E_RANGE);
    ck_assert_int_eq(zri_fail_record(NULL, ZR_E_RANGE, 1, 2, "x"), ZR_E_RANGE);
    ck_assert_int_eq(zri_fail_errno(NULL, ENOSPC, "x"), ZR_E_NO_SPACE);
}
END_TEST

START_TEST(an_error_without_record_says_so)
{
    struct zr_error err;
    zri_fail(&err, ZR_E_DICT, "%s: %d", "store", 7);
    ck_assert_str_eq(err.message, "store: 7");
    ck_assert_uint_eq(err.record, ZR_NO_RECORD);
    ck_assert_uint_eq(err.offset, UINT64_MAX);
    ck_assert_int_eq(err.sys_errno, 0);
}
END_TEST

START_TEST(a_record_error_carries_record_and_offset)
{
    struct zr_error err;
    zri_fail_record(&err, ZR_E_CORRUPT, 12, 34, "m");
    ck_assert_int_eq(err.code, ZR_E_CORRUPT);
    ck_assert_uint_eq(err.record, 12);
    ck_assert_uint_eq(err.offset, 34);
}
END_TEST

START_TEST(an_errno_becomes_code_and_words)
{
    static const struct {
        int sys_errno, code;
    } cases[] = {{ENOSPC, ZR_E_NO_SPACE},   {EDQUOT, ZR_E_NO_SPACE},  {ENOENT, ZR_E_NOT_FOUND},
                 {EACCES, ZR_E_PERMISSION}, {EROFS, ZR_E_PERMISSION}, {EPERM, ZR_E_PERMISSION},
                 {ENOMEM, ZR_E_NOMEM},      {EEXIST, ZR_E_EXISTS},    {EIO, ZR_E_IO},
                 {ENOTEMPTY, ZR_E_EXISTS},  {EMFILE, ZR_E_IO}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct zr_error err;
        ck_assert_int_eq(zri_fail_errno(&err, cases[i].sys_errno, "f"), cases[i].code);
        ck_assert_int_eq(err.sys_errno, cases[i].sys_errno);
        ck_assert_msg(strstr(err.message, strerror(cases[i].sys_errno)), "%s", err.message);
    }
}
END_TEST

START_TEST(a_path_with_a_newline_stays_one_line)
{
    struct zr_error err;
    zri_fail(&err, ZR_E_IO, "%s", "a\nb\tc\x7f");
    ck_assert_str_eq(err.message, "a?b?c?");
}
END_TEST

START_TEST(a_path_longer_than_the_message_does_not_hide_the_reason)
{
    char path[4000];
    struct zr_error err;
    memset(path, 'p', sizeof path);
    memcpy(path, "/start", 6);
    path[sizeof path - 1] = 0;
    zri_fail_errno(&err, ENOSPC, "%s/data.zr: record 17: cannot read", path);
    ck_assert_uint_lt(strlen(err.message), sizeof err.message);
    ck_assert_ptr_nonnull(strstr(err.message, "/start"));
    ck_assert_ptr_nonnull(strstr(err.message, "record 17: cannot read"));
    ck_assert_ptr_nonnull(strstr(err.message, strerror(ENOSPC)));
}
END_TEST

START_TEST(versions_are_there)
{
    ck_assert_str_eq(zr_version(), ZR_VERSION_STRING);
    ck_assert(strchr(zr_zstd_version(), '.') != NULL);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        every_code_has_its_own_name_text_and_errno,
        code_numbers_never_change,
        unknown_codes_still_have_a_name,
        failing_without_an_error_object_only_returns_the_code,
        an_error_without_record_says_so,
        a_record_error_carries_record_and_offset,
        an_errno_becomes_code_and_words,
        a_path_with_a_newline_stays_one_line,
        a_path_longer_than_the_message_does_not_hide_the_reason,
        versions_are_there,
    };
    return run_tests("error", tests, COUNT(tests), 10);
}
