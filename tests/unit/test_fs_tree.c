/* SPDX-License-Identifier: MIT
 *
 * Names, inode numbers and directory positions of a mount (fs/tree.c).
 */
#include "tree.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct tree tree_of(uint64_t length)
{
    struct tree t;
    tree_init(&t, length, false);
    return t;
}

static void check_name(uint64_t length, uint64_t id, const char *expected)
{
    struct tree t = tree_of(length);
    char name[TREE_NAME_MAX];
    uint64_t parsed = ~id;
    ck_assert_uint_eq(tree_name(&t, id, name), strlen(expected));
    ck_assert_str_eq(name, expected);
    ck_assert(tree_parse(&t, name, &parsed));
    ck_assert_uint_eq(parsed, id);
}

START_TEST(names_are_padded_to_the_width_of_the_last)
{
    check_name(1, 0, "00000000.npy");
    check_name(100000000, 99999999, "99999999.npy");
    check_name(100000001, 100000000, "100000000.npy");
    check_name(100000001, 7, "000000007.npy");
    check_name(UINT64_MAX, UINT64_MAX - 1, "18446744073709551614.npy");
}
END_TEST

START_TEST(only_the_canonical_name_exists)
{
    static const char *const ABSENT[] = {
        "",
        "0.npy",
        "0000000.npy",
        "000000000.npy",
        "+0000001.npy",
        "-0000001.npy",
        " 0000001.npy",
        "0000000a.npy",
        "00000001",
        "00000001.np",
        "00000001.npyx",
        "00000001.NPY",
        "00000001.npy ",
        "00000100.npy",
        "99999999.npy",
        "0x000001.npy",
        ".control",
        "..",
        "\xff\xff\xff\xff\xff\xff\xff\xff.npy",
    };
    struct tree t = tree_of(100);
    for (size_t i = 0; i < sizeof ABSENT / sizeof *ABSENT; i++) {
        uint64_t id = 42;
        ck_assert_msg(!tree_parse(&t, ABSENT[i], &id), "'%s' exists", ABSENT[i]);
        ck_assert_uint_eq(id, 42);
    }
}
END_TEST

START_TEST(a_name_beyond_64_bits_does_not_wrap_round)
{
    struct tree t = tree_of(UINT64_MAX);
    uint64_t id;
    ck_assert(!tree_parse(&t, "18446744073709551615.npy", &id)); /* = length */
    ck_assert(!tree_parse(&t, "18446744073709551616.npy", &id)); /* 2^64 would be record 0 */
    ck_assert(!tree_parse(&t, "99999999999999999999.npy", &id));
}
END_TEST

START_TEST(an_empty_store_has_no_names)
{
    struct tree t = tree_of(0);
    uint64_t id;
    ck_assert(!tree_parse(&t, "00000000.npy", &id));
    ck_assert(!tree_ino_record(&t, TREE_FIRST_RECORD_INO, &id));
}
END_TEST

START_TEST(inode_numbers_follow_from_records_and_are_never_zero)
{
    struct tree t = tree_of(1000);
    for (uint64_t id = 0; id < 1000; id++) {
        uint64_t ino = tree_record_ino(id), back = ~id;
        ck_assert_uint_gt(ino, TREE_CONTROL_INO);
        ck_assert(tree_ino_record(&t, ino, &back));
        ck_assert_uint_eq(back, id);
    }
    uint64_t id;
    ck_assert(!tree_ino_record(&t, 0, &id));
    ck_assert(!tree_ino_record(&t, TREE_ROOT_INO, &id));
    ck_assert(!tree_ino_record(&t, TREE_CONTROL_INO, &id));
    ck_assert(!tree_ino_record(&t, tree_record_ino(1000), &id));
    ck_assert(!tree_ino_record(&t, TREE_TEXT_INO_BIT | 70, &id));
}
END_TEST

/* Lists everything from pos on; returns a bitmap of what came and checks that
 * records come in order. */
static unsigned list_from(const struct tree *t, uint64_t pos, uint64_t *record_count)
{
    unsigned kinds = 0;
    uint64_t id = 0, expected = UINT64_MAX;
    *record_count = 0;
    for (enum tree_kind kind; (kind = tree_next(t, &pos, &id)) != TREE_END;) {
        ck_assert_msg(kind == TREE_RECORD || !(kinds & 1U << kind), "an entry came twice");
        kinds |= 1U << kind;
        if (kind != TREE_RECORD)
            continue;
        if (expected != UINT64_MAX)
            ck_assert_uint_eq(id, expected);
        expected = id + 1;
        ++*record_count;
    }
    return kinds;
}

START_TEST(a_listing_holds_every_entry_once)
{
    struct tree t = tree_of(5);
    uint64_t count;
    ck_assert_uint_eq(list_from(&t, 0, &count),
                      1U << TREE_DOT | 1U << TREE_DOTDOT | 1U << TREE_RECORD);
    ck_assert_uint_eq(count, 5);
    t.lists_control = true;
    ck_assert(list_from(&t, 0, &count) & 1U << TREE_CONTROL);
    ck_assert_uint_eq(count, 5);
}
END_TEST

START_TEST(a_listing_goes_on_from_every_position_it_gave)
{
    struct tree t = tree_of(20);
    for (int shown = 0; shown < 2; shown++) {
        t.lists_control = shown;
        uint64_t pos = 0, id, count, seen = 0;
        for (enum tree_kind kind; (kind = tree_next(&t, &pos, &id)) != TREE_END;) {
            seen += kind == TREE_RECORD;
            list_from(&t, pos, &count);
            ck_assert_uint_eq(count, 20 - seen);
        }
    }
}
END_TEST

START_TEST(positions_past_the_end_are_the_end)
{
    struct tree t = tree_of(3);
    uint64_t id, far[] = {6, 7, 1000, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        ck_assert_int_eq(tree_next(&t, &far[i], &id), TREE_END);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fs/tree");
    TCase *tests = tcase_create("tree");
    tcase_add_test(tests, names_are_padded_to_the_width_of_the_last);
    tcase_add_test(tests, only_the_canonical_name_exists);
    tcase_add_test(tests, a_name_beyond_64_bits_does_not_wrap_round);
    tcase_add_test(tests, an_empty_store_has_no_names);
    tcase_add_test(tests, inode_numbers_follow_from_records_and_are_never_zero);
    tcase_add_test(tests, a_listing_holds_every_entry_once);
    tcase_add_test(tests, a_listing_goes_on_from_every_position_it_gave);
    tcase_add_test(tests, positions_past_the_end_are_the_end);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
