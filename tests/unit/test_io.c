/* SPDX-License-Identifier: MIT
 *
 * Files, guarded mappings and locks (engine/io.c).
 */
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>

#include "support.h"

#define PAGE 4096

static struct zri_file open_file(const char *path)
{
    struct zri_file f;
    ck_assert_int_eq(zri_file_open(&f, AT_FDCWD, path), 0);
    return f;
}

static struct zri_file map_new_file(const char *path, uint64_t nbytes)
{
    spit(path, "", 0);
    cut(path, nbytes);
    struct zri_file f = open_file(path);
    ck_assert_int_eq(zri_file_map(&f), 0);
    return f;
}

static uint8_t peek(const struct zri_file *f, uint64_t off)
{
    return *(const volatile uint8_t *)(f->bytes + off);
}

START_TEST(opening_what_is_no_file_gives_an_errno)
{
    struct zri_file f;
    ck_assert(!mkdir(at("dir"), 0777) && !mkfifo(at("fifo"), 0666));
    ck_assert_int_eq(zri_file_open(&f, AT_FDCWD, at("none")), ENOENT);
    ck_assert_int_eq(f.fd, -1);
    ck_assert_int_eq(zri_file_open(&f, AT_FDCWD, at("dir")), EINVAL);
    ck_assert_int_eq(zri_file_open(&f, AT_FDCWD, at("fifo")), EINVAL); /* and does not wait */
    ck_assert_int_eq(zri_file_open(&f, AT_FDCWD, "/dev/null"), EINVAL);
}
END_TEST

START_TEST(reading_past_the_end_is_told_from_errors)
{
    char buf[16];
    spit(at("f"), "0123456789", 10);
    struct zri_file f = open_file(at("f"));
    ck_assert_int_eq(zri_file_read(&f, 4, buf, 6), 0);
    ck_assert_mem_eq(buf, "456789", 6);
    ck_assert_int_eq(zri_file_read(&f, 4, buf, 7), -1);
    ck_assert_int_eq(zri_file_read(&f, 1000, buf, 1), -1);
    ck_assert_int_gt(zri_file_read(&f, (uint64_t)1 << 63, buf, 1), 0);
    zri_file_close(&f);
}
END_TEST

START_TEST(images_are_bounded_too)
{
    char buf[16];
    struct zri_file f = {.fd = -1, .nbytes = 10, .bytes = (const uint8_t *)"0123456789"};
    ck_assert_int_eq(zri_file_read(&f, 4, buf, 6), 0);
    ck_assert_int_eq(zri_file_read(&f, 4, buf, 7), -1);
    ck_assert_int_eq(zri_file_read(&f, 11, buf, 0), -1);
    ck_assert_int_eq(zri_file_read(&f, UINT64_MAX, buf, 2), -1);
    ck_assert(zri_file_trusted(&f));
}
END_TEST

START_TEST(an_empty_file_stays_unmapped)
{
    struct zri_file f = map_new_file(at("f"), 0);
    ck_assert_ptr_null(f.bytes);
    ck_assert(zri_file_trusted(&f));
    zri_file_close(&f);
    ck_assert_int_eq(f.fd, -1);
}
END_TEST

START_TEST(a_file_truncated_while_mapped_reads_as_zeros_and_is_not_trusted)
{
    skip_lost_mappings();
    struct zri_file f = map_new_file(at("f"), 10 * PAGE);
    patch(at("f"), 9 * PAGE, "x", 1);
    ck_assert_int_eq(peek(&f, 9 * PAGE), 'x');
    ck_assert(zri_file_trusted(&f));
    cut(at("f"), PAGE);
    ck_assert_int_eq(peek(&f, 9 * PAGE), 0);
    ck_assert(!zri_file_trusted(&f));
    zri_file_close(&f);
}
END_TEST

START_TEST(a_file_cut_inside_a_page_is_not_trusted)
{
    struct zri_file f = map_new_file(at("f"), PAGE);
    cut(at("f"), 100);
    ck_assert_int_eq(peek(&f, 2000), 0); /* no signal */
    ck_assert(!zri_file_trusted(&f));
    zri_file_close(&f);
}
END_TEST

START_TEST(a_file_that_shrank_and_grew_again_is_not_trusted)
{
    skip_lost_mappings();
    struct zri_file f = map_new_file(at("f"), 10 * PAGE);
    cut(at("f"), 0);
    ck_assert_int_eq(peek(&f, 5 * PAGE), 0);
    cut(at("f"), 10 * PAGE);
    ck_assert(!zri_file_trusted(&f));
    zri_file_close(&f);
}
END_TEST

/* Every page replaced on its own would meet the kernel's limit on mappings. */
START_TEST(hundred_thousand_lost_pages_do_not_end_the_process)
{
    skip_lost_mappings();
    enum { PAGES = 200000 };
    struct zri_file f = map_new_file(at("f"), (uint64_t)PAGES * PAGE);
    cut(at("f"), 0);
    for (uint64_t i = 0; i < PAGES; i += 2)
        ck_assert(peek(&f, i * PAGE) == 0);
    ck_assert(!zri_file_trusted(&f));
    zri_file_close(&f);
}
END_TEST

START_TEST(one_lost_mapping_leaves_the_others_trusted)
{
    skip_lost_mappings();
    struct zri_file f[5];
    for (int i = 0; i < 5; i++)
        f[i] = map_new_file(at("f%d", i), 4 * PAGE);
    cut(at("f2"), 0);
    for (int i = 0; i < 5; i++)
        peek(&f[i], 3 * PAGE);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(zri_file_trusted(&f[i]), i != 2);
        zri_file_close(&f[i]);
    }
}
END_TEST

START_TEST(a_guard_used_again_starts_trusted)
{
    skip_lost_mappings();
    for (int i = 0; i < 100; i++) {
        struct zri_file f = map_new_file(at("f"), 4 * PAGE);
        ck_assert(zri_file_trusted(&f));
        cut(at("f"), 0);
        peek(&f, 3 * PAGE);
        ck_assert(!zri_file_trusted(&f));
        zri_file_close(&f);
    }
}
END_TEST

static void *map_cut_and_peek(void *arg)
{
    const char *path = arg;
    for (int i = 0; i < 200; i++) {
        int fd = open(path, O_RDWR | O_CREAT, 0666);
        struct zri_file f;
        if (fd < 0 || ftruncate(fd, 8 * PAGE) || zri_file_open(&f, AT_FDCWD, path) ||
            zri_file_map(&f) || !zri_file_trusted(&f) || ftruncate(fd, 0))
            abort();
        if (peek(&f, 5 * PAGE) || zri_file_trusted(&f))
            abort();
        close(fd);
        zri_file_close(&f);
    }
    return NULL;
}

START_TEST(mappings_lost_by_many_threads_at_once)
{
    skip_lost_mappings();
    pthread_t t[6];
    static char paths[6][100];
    for (int i = 0; i < 6; i++) {
        snprintf(paths[i], sizeof paths[i], "%s", at("f%d", i));
        ck_assert(!pthread_create(&t[i], NULL, map_cut_and_peek, paths[i]));
    }
    for (int i = 0; i < 6; i++)
        pthread_join(t[i], NULL);
}
END_TEST

static void leave_with_7(int sig)
{
    (void)sig;
    _exit(7);
}

/* The faults of the program itself stay the program's. */
static int touch_own_lost_mapping(bool with_handler)
{
    int status;
    pid_t child = fork();
    ck_assert(child >= 0);
    if (child == 0) {
        signal(SIGBUS, with_handler ? leave_with_7 : SIG_DFL);
        struct zri_file f = map_new_file(at("guarded"), PAGE);
        spit(at("own"), "", 0);
        volatile char *p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, open(at("own"), O_RDWR), 0);
        (void)p[0];
        zri_file_close(&f);
        _exit(1);
    }
    ck_assert(waitpid(child, &status, 0) == child);
    return status;
}

START_TEST(a_sigbus_elsewhere_still_ends_the_process)
{
    int status = touch_own_lost_mapping(false);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}
END_TEST

START_TEST(an_earlier_handler_still_gets_its_sigbus)
{
    int status = touch_own_lost_mapping(true);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}
END_TEST

START_TEST(shared_and_exclusive_locks_exclude_each_other)
{
    spit(at("f"), "", 0);
    int a = open(at("f"), O_RDWR), b = open(at("f"), O_RDWR), c = open(at("f"), O_RDWR);
    ck_assert_int_eq(zri_lock(a, false), 0);
    ck_assert_int_eq(zri_lock(b, false), 0);
    ck_assert_int_ne(zri_lock(c, true), 0);
    zri_unlock(a);
    zri_unlock(b);
    ck_assert_int_eq(zri_lock(c, true), 0);
    ck_assert_int_ne(zri_lock(a, false), 0);
}
END_TEST

START_TEST(unlocking_also_frees_a_childs_copy)
{
    int gate[2];
    char byte;
    spit(at("f"), "", 0);
    int a = open(at("f"), O_RDWR), b = open(at("f"), O_RDWR);
    ck_assert(!pipe(gate) && zri_lock(a, true) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(gate[1]);
        _exit((int)read(gate[0], &byte, 1));
    }
    zri_unlock(a);
    close(a);
    ck_assert_int_eq(zri_lock(b, false), 0);
    close(gate[1]);
    waitpid(child, NULL, 0);
}
END_TEST

START_TEST(clearing_a_folder_takes_its_files)
{
    ck_assert(!mkdir(at("d"), 0777));
    spit(at("d/a"), "x", 1);
    spit(at("d/.b"), "x", 1);
    ck_assert(!symlink("/etc/passwd", at("d/link")));
    int fd = open(at("d"), O_RDONLY | O_DIRECTORY);
    zri_clear_dir(fd);
    close(fd);
    ck_assert_int_eq(rmdir(at("d")), 0);
    ck_assert(exists("/etc/passwd"));
}
END_TEST

START_TEST(writes_and_reservations_report_their_errno)
{
    spit(at("f"), "", 0);
    int ro = open(at("f"), O_RDONLY), rw = open(at("f"), O_RDWR),
        full = open("/dev/full", O_WRONLY);
    ck_assert_int_eq(zri_write_full(ro, "x", 1, 0), EBADF);
    ck_assert_int_eq(zri_write_full(rw, "0123456789", 10, 5), 0);
    ck_assert_uint_eq(file_nbytes(at("f")), 15);
    ck_assert_int_eq(zri_write_full(full, "x", 1, 0), ENOSPC);
    bool reserved = true;
    ck_assert_int_eq(zri_preallocate(rw, 0, 100000, NULL), 0);
    ck_assert_int_ne(zri_preallocate(rw, 0, INT64_MAX, &reserved), 0);
    ck_assert(!reserved);
    ck_assert_int_eq(zri_preallocate(ro, 0, 100, NULL), EBADF);
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

int main(void)
{
    const TTest *const tests[] = {
        opening_what_is_no_file_gives_an_errno,
        reading_past_the_end_is_told_from_errors,
        images_are_bounded_too,
        an_empty_file_stays_unmapped,
        a_file_truncated_while_mapped_reads_as_zeros_and_is_not_trusted,
        a_file_cut_inside_a_page_is_not_trusted,
        a_file_that_shrank_and_grew_again_is_not_trusted,
        hundred_thousand_lost_pages_do_not_end_the_process,
        one_lost_mapping_leaves_the_others_trusted,
        a_guard_used_again_starts_trusted,
        mappings_lost_by_many_threads_at_once,
        a_sigbus_elsewhere_still_ends_the_process,
        an_earlier_handler_still_gets_its_sigbus,
        shared_and_exclusive_locks_exclude_each_other,
        unlocking_also_frees_a_childs_copy,
        clearing_a_folder_takes_its_files,
        writes_and_reservations_report_their_errno,
        a_size_is_taken_again_under_the_lock,
    };
    return run_tests("io", tests, COUNT(tests), 60);
}
