/* SPDX-License-Identifier: MIT
 *
 * Names and inode numbers of a mount (fs/tree.c).
 */
#include "tree.h"

#include "support.h"

static struct tree tree_of(uint64_t length)
{
    struct tree t;
    tree_init(&t, length, ".npy");
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
}
END_TEST

START_TEST(suffixes_are_part_of_the_name)
{
    struct tree t;
    char name[TREE_NAME_MAX];
    uint64_t id;
    tree_init(&t, 12, "");
    ck_assert_uint_eq(tree_name(&t, 7, name), 8);
    ck_assert_str_eq(name, "00000007");
    ck_assert(tree_parse(&t, "00000011", &id) && id == 11);
    ck_assert(!tree_parse(&t, "00000011.npy", &id));
    tree_init(&t, 12, ".png");
    ck_assert(tree_parse(&t, "00000003.png", &id) && id == 3);
    ck_assert(!tree_parse(&t, "00000003.npy", &id));
}
END_TEST

static void check_ino(bool is_lone, struct tree_ino parts)
{
    uint64_t ino = tree_pack(is_lone, parts);
    struct tree_ino back = tree_unpack(is_lone, ino);
    ck_assert_uint_ne(ino, 0);
    ck_assert(!(ino & TREE_MINTED_BIT));
    ck_assert_int_eq(back.role, parts.role);
    ck_assert_uint_eq(back.place, is_lone ? 0 : parts.place);
    ck_assert_uint_eq(back.index, parts.index);
}

START_TEST(every_part_of_an_inode_number_comes_back)
{
    static const uint64_t SMALL[] = {1, 2, 63, 64, 1000000, UINT32_MAX};
    static const uint32_t PLACES[] = {0, 1, 12345, (1U << TREE_PLACE_BITS) - 1};
    for (int role = TREE_PLAIN; role <= TREE_LABEL; role++) {
        for (size_t i = 0; i < sizeof SMALL / sizeof *SMALL; i++)
            for (size_t p = 0; p < sizeof PLACES / sizeof *PLACES; p++)
                check_ino(false, (struct tree_ino){role, PLACES[p], SMALL[i]});
        check_ino(true, (struct tree_ino){role, 0, ((uint64_t)1 << 61) - 1});
    }
}
END_TEST

START_TEST(a_lone_store_numbers_its_records_from_64)
{
    struct tree_ino parts = {TREE_PLAIN, 0, TREE_FIRST_RECORD + 5};
    ck_assert_uint_eq(tree_pack(true, parts), 69);
    ck_assert_uint_eq(tree_pack(true, (struct tree_ino){TREE_PLAIN, 0, TREE_FOLDER}), 1);
    ck_assert_uint_eq(tree_pack(false, (struct tree_ino){TREE_PLAIN, 0, TREE_FOLDER}), 1);
    ck_assert_uint_eq(tree_max_length(false), ((uint64_t)1 << 32) - 64);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        names_are_padded_to_the_width_of_the_last,
        only_the_canonical_name_exists,
        a_name_beyond_64_bits_does_not_wrap_round,
        an_empty_store_has_no_names,
        suffixes_are_part_of_the_name,
        every_part_of_an_inode_number_comes_back,
        a_lone_store_numbers_its_records_from_64,
    };
    return run_tests("fs_tree", tests, COUNT(tests), 60);
}
