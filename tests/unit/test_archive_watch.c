/* SPDX-License-Identifier: MIT
 *
 * Long work on archives asks whether to go on also inside a member, and while the
 * caller waits for other threads (engine/archive_watch.c).
 */
#include <semaphore.h>

#include "archive.h"
#include "support.h"

enum { LEAF_NBYTES = 9 << 20, NEVER = 1 << 30 };

static uint8_t leaf[LEAF_NBYTES];

/* Stops at a call, and knows how far the work said it was. */
struct caller {
    unsigned calls, stop_at;
    uint64_t done;
};

static int ask(void *ctx, uint64_t done, uint64_t total)
{
    struct caller *c = ctx;
    ck_assert(done <= total && done >= c->done);
    c->done = done;
    return ++c->calls >= c->stop_at;
}

static const char *method;

static int save(struct caller *c, struct zr_error *err)
{
    const struct zr_archive_save_options o = {
        .method = method, .level = 1, .thread_count = 1, .progress = ask, .progress_ctx = c};
    const struct zr_archive_save_options stored = {
        .thread_count = 1, .progress = ask, .progress_ctx = c};
    const struct zr_archive_source sources[] = {
        {.name = "meta.json", .data = "{}", .nbytes = 2},
        {.name = "x.memmap", .data = leaf, .nbytes = sizeof leaf, .is_payload = true},
    };
    return zr_archive_save(at("new.tdz"), sources, COUNT(sources),
                           strcmp(method, "stored") ? &o : &stored, err);
}

static int unpack(struct caller *c, struct zr_error *err)
{
    const struct zr_archive_unpack_options o = {
        .thread_count = 1, .progress = ask, .progress_ctx = c};
    return zr_archive_unpack(at("a.tdz"), at("dir"), &o, err);
}

static int verify(struct caller *c, struct zr_error *err)
{
    struct zr_archive *a;
    struct zr_verify_result found;
    ck_assert_int_eq(zr_archive_open(&a, at("a.tdz"), ZR_ARCHIVE_COPY, err), ZR_OK);
    int rc = zr_archive_verify(a, NULL, ask, c, &found, err);
    ck_assert_uint_eq(found.bad_count, 0);
    zr_archive_close(a);
    return rc;
}

static int refresh(struct caller *c, struct zr_error *err)
{
    return zr_archive_refresh(at("a.tdz"), ask, c, err);
}

static bool compares_only;

static int read_leaf(struct caller *c, struct zr_error *err)
{
    struct zr_archive *a;
    const struct zr_archive_read_options o = {
        .thread_count = 1, .progress = ask, .progress_ctx = c};
    uint8_t *out = malloc(LEAF_NBYTES);
    struct zr_archive_copy copy = {.out = compares_only ? NULL : out};
    ck_assert_int_eq(zr_archive_open(&a, at("a.tdz"), ZR_ARCHIVE_COPY, err), ZR_OK);
    ck_assert_int_eq(zr_archive_find(a, "x.memmap", &copy.index, err), ZR_OK);
    int rc = zr_archive_read(a, &copy, 1, &o, err);
    zr_archive_close(a);
    ck_assert(rc || compares_only || !memcmp(out, leaf, LEAF_NBYTES));
    ck_assert(rc || c->done == LEAF_NBYTES);
    free(out);
    return rc;
}

static void prepare(const char *new_method)
{
    zr_set_thread_count(1);
    zri_watch_nsec = 0;
    method = new_method;
    fill_record(1, leaf, sizeof leaf);
    struct caller patient = {.stop_at = NEVER};
    expect_ok(save(&patient, &err));
    ck_assert(rename(at("new.tdz"), at("a.tdz")) == 0);
}

/* At each question up to some inside the large member. */
static void stop_at_each(int (*run)(struct caller *, struct zr_error *), uint64_t done)
{
    for (unsigned k = 1; k < 6; k++) {
        struct caller c = {.stop_at = k};
        struct zr_error err = {0};
        ck_assert_int_eq(run(&c, &err), ZR_E_CANCELLED);
        ck_assert_msg(c.calls == k && c.done <= done, "call %u, %" PRIu64 " done", k, c.done);
        ck_assert_uint_eq(entry_count(test_dir), 1);
    }
    struct caller patient = {.stop_at = NEVER};
    expect_ok(run(&patient, &err));
    remove_tree(at("dir"));
    unlink(at("new.tdz"));
}

static const char *const slow[] = {"bzip2", "lzma"};

START_TEST(a_save_is_stopped_inside_a_member)
{
    for (size_t i = 0; i < COUNT(slow); i++) {
        prepare(slow[i]);
        stop_at_each(save, 2);
    }
}
END_TEST

START_TEST(an_unpack_is_stopped_inside_a_member)
{
    for (size_t i = 0; i < COUNT(slow); i++) {
        prepare(slow[i]);
        stop_at_each(unpack, 2);
    }
    prepare("stored");
    stop_at_each(unpack, 2);
}
END_TEST

START_TEST(a_verification_is_stopped_inside_a_member)
{
    for (size_t i = 0; i < COUNT(slow); i++) {
        prepare(slow[i]);
        stop_at_each(verify, 0);
    }
}
END_TEST

START_TEST(a_refresh_is_stopped_inside_a_member)
{
    prepare("stored");
    struct caller c = {.stop_at = 2};
    expect_error(refresh(&c, &err), ZR_E_CANCELLED, "cancelled");
    ck_assert_uint_eq(c.done, 0);
}
END_TEST

START_TEST(a_read_is_stopped_inside_a_member)
{
    static const char *const methods[] = {"bzip2", "lzma", "stored"};
    for (size_t i = 0; i < COUNT(methods); i++) {
        prepare(methods[i]);
        for (compares_only = false;; compares_only = true) {
            stop_at_each(read_leaf, 0);
            if (compares_only)
                break;
        }
    }
}
END_TEST

/* The caller has nothing left to do, and asks while the other thread still reads. */
START_TEST(a_read_of_many_members_is_stopped)
{
    enum { COUNT_OF_COPIES = 64 };
    struct zr_archive_copy copies[COUNT_OF_COPIES];
    struct zr_archive *a;
    prepare("bzip2");
    zr_set_thread_count(2);
    expect_ok(zr_archive_open(&a, at("a.tdz"), ZR_ARCHIVE_COPY, &err));
    for (size_t i = 0; i < COUNT_OF_COPIES; i++) {
        copies[i].out = NULL;
        expect_ok(zr_archive_find(a, "x.memmap", &copies[i].index, &err));
    }
    struct caller c = {.stop_at = 3};
    const struct zr_archive_read_options o = {.progress = ask, .progress_ctx = &c};
    expect_error(zr_archive_read(a, copies, COUNT_OF_COPIES, &o, &err), ZR_E_CANCELLED,
                 "cancelled");
    ck_assert_uint_eq(c.calls, 3);
    zr_archive_close(a);
}
END_TEST

static sem_t looked;

static void look(void *ctx)
{
    (void)ctx;
    sem_post(&looked);
}

/* The caller's task ends at once; the other one only when the caller looked. */
static void wait_for_look(void *ctx, size_t i)
{
    static atomic_uint arrived;
    (void)i;
    atomic_fetch_add(&arrived, 1);
    while (atomic_load(&arrived) < 2)
        usleep(100);
    if (!pthread_equal(pthread_self(), *(pthread_t *)ctx))
        sem_wait(&looked);
}

START_TEST(a_caller_that_waits_looks_round)
{
    pthread_t self = pthread_self();
    sem_init(&looked, 0, 0);
    zr_set_thread_count(2);
    zri_parallel_looking(2, 2, wait_for_look, &self, look, NULL);
    sem_destroy(&looked);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_save_is_stopped_inside_a_member,         an_unpack_is_stopped_inside_a_member,
        a_verification_is_stopped_inside_a_member, a_refresh_is_stopped_inside_a_member,
        a_read_is_stopped_inside_a_member,         a_read_of_many_members_is_stopped,
        a_caller_that_waits_looks_round,
    };
    return run_tests("archive_watch", tests, COUNT(tests), 120);
}
