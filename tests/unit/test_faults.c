/* SPDX-License-Identifier: MIT
 *
 * Every system call of writer and reader, failing or being the last one before
 * a kill.
 */
#include "faults.h"

/* ---------------------------------------------------------------- writing */

enum { FIRST = 70, SECOND = 30, TOTAL = FIRST + SECOND };

struct build {
    int geometry, codec;
    bool durable;
    uint64_t repeats; /* of all records */
};

/* The long ones are of several blocks of their tail. */
static const struct build builds[] = {
    {ZR_DENSE, ZR_RAW, true, 1},        {ZR_DENSE, ZR_ZSTD, false, 1},
    {ZR_RAGGED, ZR_ZSTD_DICT, true, 1}, {ZR_RAGGED, ZR_RAW, false, 1},
    {ZR_DENSE, ZR_RAW, false, 300},     {ZR_RAGGED, ZR_RAW, true, 300},
};

static uint8_t rows[TOTAL * ROW_NBYTES];
static uint64_t shapes[TOTAL][4];
static struct zr_item items[TOTAL];

/* Before any fault, and before any fork: neither touches Check. */
static struct zr_writer_options prepare(const struct build *b)
{
    struct zr_writer_options o = options_for(b->geometry, b->codec);
    o.durability = b->durable ? ZR_DURABLE : ZR_NO_FSYNC;
    for (uint64_t i = 0; i < TOTAL; i++) {
        fill_record(i, rows + i * ROW_NBYTES, ROW_NBYTES);
        items[i].data = rows + i * ROW_NBYTES;
        items[i].ndim = 1;
        items[i].shape = shapes[i];
        shapes[i][0] = ROW_NBYTES - i;
    }
    zr_set_thread_count(1);
    return o;
}

static int append(struct zr_writer *w, const struct build *b, uint64_t first, uint64_t count,
                  struct zr_error *err)
{
    return b->geometry == ZR_DENSE
               ? zr_writer_append_dense(w, rows + first * ROW_NBYTES, count, err)
               : zr_writer_append_ragged(w, items + first, count, err);
}

static int build_store(const struct build *b, const struct zr_writer_options *o, const char *path,
                       struct zr_error *err)
{
    struct zr_writer *w;
    int rc = zr_writer_create(&w, path, o, err);
    if (rc)
        return rc;
    for (uint64_t k = 0; !rc && k < b->repeats; k++) {
        rc = append(w, b, 0, FIRST, err);
        if (!rc)
            rc = append(w, b, FIRST, SECOND, err);
    }
    if (!rc)
        return zr_writer_close(w, err);
    zr_writer_abort(w);
    return rc;
}

static void check_complete(const struct build *b, const char *path)
{
    struct zr_reader *r = open_with(path, ZR_ACCESS_MAP, true);
    ck_assert_ptr_null(zr_reader_warning(r));
    ck_assert_uint_eq(r->header.length, b->repeats * TOTAL);
    for (uint64_t at_id = 0; at_id < b->repeats * TOTAL; at_id++) {
        void *block;
        const void *npy;
        uint64_t nbytes, id = at_id % TOTAL;
        uint64_t payload = b->geometry == ZR_DENSE ? ROW_NBYTES : ROW_NBYTES - id;
        expect_ok(zr_record_npy(r, at_id, &block, &npy, &nbytes, &err));
        ck_assert(is_record(id, (const uint8_t *)npy + nbytes - payload, payload));
        zr_buffer_free(block);
    }
    zr_reader_close(r);
}

/* true: the writer came to its end before call k. */
static bool kill_at(const struct build *b, const struct zr_writer_options *o, enum fault fault,
                    unsigned k)
{
    int status;
    pid_t child = fork();
    ck_assert(child >= 0);
    if (child == 0) {
        plan_fault(fault, k, 0);
        _exit(build_store(b, o, at("new/s"), NULL) != ZR_OK);
    }
    ck_assert(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status))
        ck_assert_int_eq(WEXITSTATUS(status), 0);
    return WIFEXITED(status);
}

static void check_after_kill(const struct build *b, const struct zr_writer_options *o, unsigned k)
{
    struct zr_reader *r;
    struct zr_error e;
    if (exists(at("new/s"))) {
        check_complete(b, at("new/s"));
    } else {
        if (zr_reader_open(&r, at("new/.s.zrecord-build"), NULL, &e) == ZR_OK) {
            /* killed just before the rename */
            ck_assert_uint_eq(r->header.length, b->repeats * TOTAL);
            zr_reader_close(r);
        }
        int rc = build_store(b, o, at("new/s"), &e); /* and the next writer is not hindered */
        ck_assert_msg(rc == ZR_OK, "after a kill at call %u: %s", k, e.message);
        check_complete(b, at("new/s"));
    }
    ck_assert_uint_eq(entry_count(at("new")), 1);
}

static void kill_everywhere(enum fault fault)
{
    for (size_t i = 0; i < COUNT(builds); i++) {
        struct zr_writer_options o = prepare(&builds[i]);
        unsigned k = 1;
        for (bool finished = false; !finished; k++) {
            finished = kill_at(&builds[i], &o, fault, k);
            check_after_kill(&builds[i], &o, k);
            remove_tree(at("new"));
        }
        ck_assert_uint_gt(k, 8);
    }
}

/* What waits of the three is written.  Data; sidecar; table: durable.  Then the header, durable;
 * then the names in the folder; then the rename, durable; then the name of the parent that was
 * made. */
START_TEST(everything_is_durable_before_it_is_visible)
{
    const struct build b = {ZR_DENSE, ZR_RAW, true, 1};
    struct zr_writer_options o = prepare(&b);
    struct zr_writer *w;
    expect_ok(zr_writer_create(&w, at("new/s"), &o, &err));
    expect_ok(append(w, &b, 0, TOTAL, &err));
    memset(history, 0, sizeof history);
    expect_ok(zr_writer_close(w, &err));
    ck_assert_str_eq(history, "www"
                              "f"
                              "wf"
                              "f"
                              "wf"
                              "f"
                              "rf"
                              "f");
}
END_TEST

START_TEST(a_writer_killed_before_any_call_leaves_all_or_nothing)
{
    kill_everywhere(KILL_BEFORE);
}
END_TEST

START_TEST(a_writer_killed_after_any_call_leaves_all_or_nothing)
{
    kill_everywhere(KILL_AFTER);
}
END_TEST

START_TEST(a_writer_killed_in_the_middle_of_any_write_leaves_all_or_nothing)
{
    kill_everywhere(KILL_HALFWAY);
}
END_TEST

START_TEST(a_writer_killed_at_random_moments_leaves_all_or_nothing)
{
    const struct build *b = &builds[2];
    struct zr_writer_options o = prepare(b);
    for (unsigned i = 0; i < 60; i++) {
        pid_t child = fork();
        if (child == 0) {
            build_store(b, &o, at("new/s"), NULL);
            _exit(0);
        }
        usleep(i * 150);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        check_after_kill(b, &o, i);
        remove_tree(at("new"));
    }
}
END_TEST

static void check_failure(const struct build *b, int rc, const struct zr_error *e, int sys_errno,
                          unsigned k)
{
    if (rc == ZR_OK) {
        check_complete(b, at("new/s")); /* the engine had another way */
        remove_tree(at("new"));
        return;
    }
    ck_assert_msg(rc == (sys_errno == ENOSPC ? ZR_E_NO_SPACE : ZR_E_IO), "call %u: %s: %s", k,
                  zr_code_name(rc), e->message);
    ck_assert_int_eq(e->code, rc);
    ck_assert_int_eq(e->sys_errno, sys_errno);
    ck_assert_msg(strstr(e->message, "new/s: cannot "), "%s", e->message);
    ck_assert_msg(entry_count(test_dir) == 0, "call %u left something: %s", k, e->message);
}

static void fail_everywhere(enum fault fault, int sys_errno)
{
    for (size_t i = 0; i < COUNT(builds); i++) {
        struct zr_writer_options o = prepare(&builds[i]);
        unsigned calls = UINT32_MAX;
        for (unsigned k = 1; k <= calls; k++) {
            struct zr_error e = {0};
            plan_fault(fault, k, sys_errno);
            int rc = build_store(&builds[i], &o, at("new/s"), &e);
            if (rc == ZR_OK && atomic_load(&plan.calls) < k)
                calls = 0;
            plan_fault(NONE, 0, 0);
            check_failure(&builds[i], rc, &e, sys_errno, k);
        }
    }
}

START_TEST(a_disk_that_is_full_at_any_call_leaves_nothing)
{
    fail_everywhere(FAIL_ONCE, ENOSPC);
}
END_TEST

START_TEST(a_disk_that_stays_full_from_any_call_leaves_nothing)
{
    fail_everywhere(FAIL_FROM, ENOSPC);
}
END_TEST

START_TEST(a_disk_that_fails_at_any_call_leaves_nothing)
{
    fail_everywhere(FAIL_ONCE, EIO);
}
END_TEST

START_TEST(a_disk_that_keeps_failing_from_any_call_leaves_nothing)
{
    fail_everywhere(FAIL_FROM, EIO);
}
END_TEST

START_TEST(short_and_interrupted_reads_and_writes_change_nothing)
{
    for (size_t i = 0; i < COUNT(builds); i++) {
        struct zr_writer_options o = prepare(&builds[i]);
        plan_fault(SHORT, 0, 0);
        expect_ok(build_store(&builds[i], &o, at("new/s"), &err));
        check_complete(&builds[i], at("new/s"));
        remove_tree(at("new"));
    }
}
END_TEST

/* ---------------------------------------------------------------- reading */

/* Opens and reads all; whichever call fails says so. */
static int read_store(const char *path, int access, struct zr_error *err)
{
    struct zr_reader_options o = {.access = access, .checksums = true};
    struct zr_reader *r;
    int rc = zr_reader_open(&r, path, &o, err);
    if (rc)
        return rc;
    for (uint64_t id = 0; !rc && id < r->header.length; id += 9) {
        uint64_t nbytes;
        rc = zr_record_npy_nbytes(r, id, &nbytes, err);
        if (!rc)
            rc = gather_one(r, id, err);
    }
    zr_reader_close(r);
    return rc;
}

START_TEST(a_reader_whose_any_call_fails_reports_it)
{
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
            char path[100];
            strcpy(path, at("%d%d", geometry, access));
            make_store(path, geometry, ZR_ZSTD_DICT, 40);
            unsigned k = 0, failures = 0;
            do {
                struct zr_error e = {0};
                plan_fault(FAIL_ONCE, ++k, EIO);
                int rc = read_store(path, access, &e);
                bool reached = atomic_load(&plan.calls) >= k;
                plan_fault(NONE, 0, 0);
                if (!reached)
                    break;
                failures += rc != ZR_OK;
                ck_assert_msg(rc == ZR_OK || (rc == ZR_E_IO && strstr(e.message, path)), "%s: %s",
                              zr_code_name(rc), e.message);
            } while (k < 10000);
            ck_assert_uint_gt(failures, 3);
        }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        everything_is_durable_before_it_is_visible,
        a_writer_killed_before_any_call_leaves_all_or_nothing,
        a_writer_killed_after_any_call_leaves_all_or_nothing,
        a_writer_killed_in_the_middle_of_any_write_leaves_all_or_nothing,
        a_writer_killed_at_random_moments_leaves_all_or_nothing,
        a_disk_that_is_full_at_any_call_leaves_nothing,
        a_disk_that_stays_full_from_any_call_leaves_nothing,
        a_disk_that_fails_at_any_call_leaves_nothing,
        a_disk_that_keeps_failing_from_any_call_leaves_nothing,
        short_and_interrupted_reads_and_writes_change_nothing,
        a_reader_whose_any_call_fails_reports_it,
    };
    return run_tests("faults", tests, COUNT(tests), 120);
}
