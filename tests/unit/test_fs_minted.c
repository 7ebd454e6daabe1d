/* SPDX-License-Identifier: MIT
 *
 * Numbers that live until they are forgotten (fs/minted.c).
 */
#include "minted.h"
#include "node.h"
#include "tree.h"

#include "support.h"

/* Mints a text and drops the pin; returns its number. */
static uint64_t freeze(struct minted_table *t, const char *text)
{
    struct minted *m;
    const struct minted_wish wish = {
        .kind = &node_text, .bytes = strdup(text), .nbytes = strlen(text)};
    ck_assert_int_eq(minted_get(t, &wish, &m), 0);
    uint64_t ino = m->ino;
    ck_assert_mem_eq(m->bytes, text, strlen(text));
    minted_unpin(t, m);
    return ino;
}

static int refuse(struct minted_table *t, const char *text)
{
    struct minted *m;
    const struct minted_wish wish = {
        .kind = &node_text, .bytes = strdup(text), .nbytes = strlen(text)};
    int failure = minted_get(t, &wish, &m);
    ck_assert_ptr_null(m);
    return failure;
}

static void check_usage(struct minted_table *t, size_t count, size_t nbytes)
{
    size_t have_count, have_nbytes;
    minted_usage(t, &have_count, &have_nbytes);
    ck_assert_uint_eq(have_count, count);
    ck_assert_uint_eq(have_nbytes, nbytes);
}

START_TEST(every_text_has_a_number_of_its_own_until_forgotten)
{
    struct minted_table *t = minted_new(1000, 1 << 20);
    uint64_t first = freeze(t, "one"), second = freeze(t, "one");
    ck_assert_uint_ne(first, second);
    ck_assert(first & TREE_MINTED_BIT);
    check_usage(t, 2, 6);
    minted_forget(t, first, 1);
    ck_assert_ptr_null(minted_pin(t, first));
    check_usage(t, 1, 3);
    minted_forget(t, first, 1); /* unknown by now: ignored */
    minted_free(t);
}
END_TEST

START_TEST(lookups_are_counted)
{
    struct minted_table *t = minted_new(10, 1 << 20);
    uint64_t ino = freeze(t, "x");
    ck_assert(minted_lookup_again(t, ino));
    minted_forget(t, ino, 1);
    check_usage(t, 1, 1);
    minted_forget(t, ino, 5); /* more than there are */
    check_usage(t, 0, 0);
    ck_assert(!minted_lookup_again(t, ino));
    minted_free(t);
}
END_TEST

START_TEST(what_is_pinned_outlives_its_forgetting)
{
    struct minted_table *t = minted_new(10, 1 << 20);
    uint64_t ino = freeze(t, "still here");
    struct minted *m = minted_pin(t, ino);
    minted_forget(t, ino, 1);
    ck_assert_mem_eq(m->bytes, "still here", 10);
    minted_unpin(t, m);
    check_usage(t, 0, 0);
    minted_unpin(t, NULL);
    minted_free(t);
}
END_TEST

START_TEST(live_ones_are_bounded_in_count_and_bytes)
{
    struct minted_table *t = minted_new(3, 10);
    uint64_t held = freeze(t, "1234");
    ck_assert_int_eq(refuse(t, "1234567"), ENFILE);
    freeze(t, "1");
    freeze(t, "2");
    ck_assert_int_eq(refuse(t, "3"), ENFILE);
    minted_forget(t, held, 1);
    freeze(t, "3");
    minted_free(t);
}
END_TEST

static uint64_t named(struct minted_table *t, const struct node_kind *kind, const char *name)
{
    struct minted *m;
    const struct minted_wish wish = {.kind = kind, .name = name, .bytes = malloc(4), .nbytes = 4};
    ck_assert_int_eq(minted_get(t, &wish, &m), 0);
    ck_assert_str_eq(m->name, name);
    uint64_t ino = m->ino;
    minted_unpin(t, m);
    return ino;
}

START_TEST(a_name_has_one_number_that_follows_from_it)
{
    struct minted_table *t = minted_new(10, 1 << 20);
    uint64_t ino = named(t, &node_text, "0,5,2");
    ck_assert_uint_eq(named(t, &node_text, "0,5,2"), ino);
    check_usage(t, 1, 4);
    ck_assert_uint_ne(named(t, &node_text, "0:256"), ino);
    /* Another kind meets the first one on its number, and moves on. */
    uint64_t other = named(t, &node_record, "0,5,2");
    ck_assert_uint_ne(other, ino);
    ck_assert_uint_eq(named(t, &node_record, "0,5,2"), other);
    check_usage(t, 3, 12);
    minted_forget(t, ino, 2);
    ck_assert_ptr_null(minted_pin(t, ino));
    minted_free(t);

    t = minted_new(10, 1 << 20);
    ck_assert_uint_eq(named(t, &node_text, "0,5,2"), ino);
    minted_free(t);
}
END_TEST

static uint64_t in_folder(struct minted_table *t, const char *name)
{
    struct minted *m;
    const struct minted_wish wish = {.kind = &node_text, .name = name, .folder_ino = 9};
    ck_assert_int_eq(minted_get(t, &wish, &m), 0);
    minted_unpin(t, m);
    return m->ino;
}

static void check_surplus(struct minted_table *t, size_t kept_count, const char *expected)
{
    uint64_t folder_ino = 0;
    ck_assert_int_eq(minted_has_surplus(t, kept_count), expected != NULL);
    char *name = minted_take_surplus(t, kept_count, &folder_ino);
    if (expected) {
        ck_assert_str_eq(name, expected);
        ck_assert_uint_eq(folder_ino, 9);
    } else {
        ck_assert_ptr_null(name);
    }
    free(name);
}

START_TEST(the_names_longest_not_asked_for_are_surplus)
{
    struct minted_table *t = minted_new(10, 1 << 20);
    uint64_t a = in_folder(t, "a");
    in_folder(t, "b");
    uint64_t c = in_folder(t, "c");
    in_folder(t, "a"); /* again */
    freeze(t, "a text is never one");
    check_surplus(t, 3, NULL);
    check_surplus(t, 2, "b");
    check_surplus(t, 2, NULL); /* given once */
    minted_forget(t, c, 1);
    check_surplus(t, 1, NULL);
    check_surplus(t, 0, "a");
    check_surplus(t, 0, NULL);
    minted_forget(t, a, 2);
    check_usage(t, 2, 19);
    minted_free(t);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        every_text_has_a_number_of_its_own_until_forgotten,
        lookups_are_counted,
        what_is_pinned_outlives_its_forgetting,
        live_ones_are_bounded_in_count_and_bytes,
        a_name_has_one_number_that_follows_from_it,
        the_names_longest_not_asked_for_are_surplus,
    };
    return run_tests("fs_minted", tests, COUNT(tests), 60);
}
