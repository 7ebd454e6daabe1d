/* SPDX-License-Identifier: MIT
 *
 * Selections of records in file names and commands (fs/selection.c).
 */
#include "selection.h"

#include "support.h"

/* Parses for 1000 records and compares with the ids expected, taken in pieces of
 * every size. */
static void check_ids(const char *text, size_t count, const uint64_t *expected)
{
    struct selection *s;
    uint64_t ids[64];
    ck_assert_int_eq(selection_parse(text, strlen(text), 1000, &s), 0);
    ck_assert_uint_eq(s->count, count);
    for (size_t piece = 1; piece <= count; piece++) {
        for (size_t at = 0; at < count; at += piece)
            selection_ids(s, at, count - at < piece ? count - at : piece, ids + at);
        ck_assert_mem_eq(ids, expected, count * sizeof *ids);
    }
    selection_ids(s, count, 0, ids);
    free(s);
}
#define CHECK_IDS(text, ...)                                                                       \
    check_ids(text, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (const uint64_t[]){__VA_ARGS__})

START_TEST(ids_and_ranges_in_any_order)
{
    CHECK_IDS("0", 0);
    CHECK_IDS("999", 999);
    CHECK_IDS("0,5,2,5", 0, 5, 2, 5);
    CHECK_IDS("3:6", 3, 4, 5);
    CHECK_IDS("0:10:4,7", 0, 4, 8, 7);
    CHECK_IDS("998:,1", 998, 999, 1);
    CHECK_IDS(":2", 0, 1);
    CHECK_IDS("::500", 0, 500);
    CHECK_IDS("5:5,1,7:7:3,2", 1, 2);
    CHECK_IDS("007", 7);
}
END_TEST

START_TEST(ranges_end_where_the_store_does)
{
    CHECK_IDS("998:4096", 998, 999);
    CHECK_IDS("0:1001:500", 0, 500);
    CHECK_IDS("997:18446744073709551614:2,3", 997, 999, 3);
    CHECK_IDS("1000:,1000:2000,5000:6000,5000:,7", 7);
}
END_TEST

START_TEST(everything_and_nothing)
{
    struct selection *s;
    ck_assert_int_eq(selection_parse(":", 1, 1000, &s), 0);
    ck_assert_uint_eq(s->count, 1000);
    free(s);
    ck_assert_int_eq(selection_parse(":", 1, 0, &s), 0);
    ck_assert_uint_eq(s->count, 0);
    free(s);
    ck_assert_int_eq(selection_parse("3:3", 3, 1000, &s), 0);
    ck_assert_uint_eq(s->count, 0);
    free(s);
}
END_TEST

static int failure_of(const char *text)
{
    struct selection *s = NULL;
    int failure = selection_parse(text, strlen(text), 1000, &s);
    ck_assert_ptr_null(s);
    return failure;
}

START_TEST(other_words_are_refused)
{
    static const char *const WRONG[] = {"",    ",",       "a",     "1,",   ",1",  "1,,2",
                                        "-1",  "+1",      " 1",    "1 ",   "0x1", "1:2:0",
                                        "5:2", "1:2:3:4", "1.npy", "0:-1", "1;2", "\xff"};
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++)
        ck_assert_msg(failure_of(WRONG[i]) == EINVAL, "'%s'", WRONG[i]);
}
END_TEST

START_TEST(records_that_are_not_there_are_out_of_range)
{
    ck_assert_int_eq(failure_of("1000"), ERANGE);
    ck_assert_int_eq(failure_of("0,1000"), ERANGE);
    ck_assert_int_eq(failure_of("18446744073709551616"), ERANGE);
    ck_assert_int_eq(failure_of("18446744073709551615"), ERANGE);
    ck_assert_int_eq(failure_of("0:99999999999999999999"), ERANGE);
}
END_TEST

START_TEST(a_text_ends_where_it_is_said_to)
{
    struct selection *s;
    ck_assert_int_eq(selection_parse("12,5", 1, 1000, &s), 0);
    ck_assert_uint_eq(s->count, 1);
    free(s);
    ck_assert_int_eq(selection_parse("12,5", 3, 1000, &s), EINVAL);
}
END_TEST

START_TEST(more_than_a_file_could_hold_is_out_of_range)
{
    struct selection *s;
    char text[] = "::1,::1,::1";
    ck_assert_int_eq(selection_parse(text, strlen(text), (uint64_t)1 << 62, &s), ERANGE);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        ids_and_ranges_in_any_order,
        ranges_end_where_the_store_does,
        everything_and_nothing,
        other_words_are_refused,
        records_that_are_not_there_are_out_of_range,
        a_text_ends_where_it_is_said_to,
        more_than_a_file_could_hold_is_out_of_range,
    };
    return run_tests("fs_selection", tests, COUNT(tests), 60);
}
