/* SPDX-License-Identifier: MIT
 *
 * An unpack into a folder that is there: all of it or nothing, whatever stops it
 * half-way, and at any depth (engine/archive_place.c, archive_folders.c).
 */
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "archive.h"
#include "support.h"

/* ---------------------------------------------------------------- renames that fail */

enum lack { HAS_ALL, NO_EXCHANGE, NO_FLAGS, NO_LINKS };

static enum lack lack;              /* of the filesystem: each of what stands before it too */
static unsigned fail_from, fail_to; /* calls that fail; 0: none */
static atomic_uint calls; /* two threads unpack in one of the tests */

static void (*_Atomic on_call)(void); /* before the first one */

static int run_call(long (*call)(int, const char *, int, const char *, unsigned), int from_fd,
                    const char *from, int to_fd, const char *to, unsigned flags)
{
    bool is_removal = !strncmp(to, ".lifted-", 8);
    calls += !is_removal;
    if (on_call && !is_removal)
        on_call();
    if (fail_from && !is_removal && calls >= fail_from && calls <= fail_to) {
        errno = EIO;
        return -1;
    }
    return (int)call(from_fd, from, to_fd, to, flags);
}

static long rename_call(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    bool is_known =
        lack == HAS_ALL || flags == 0 || (lack == NO_EXCHANGE && !(flags & RENAME_EXCHANGE));
    if (!is_known) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

static long link_call(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    if (lack == NO_LINKS) {
        errno = EPERM;
        return -1;
    }
    return syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return run_call(rename_call, from_fd, from, to_fd, to, flags);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return run_call(rename_call, from_fd, from, to_fd, to, 0);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    return run_call(link_call, from_fd, from, to_fd, to, (unsigned)flags);
}

static void plan_failure(unsigned from, unsigned to)
{
    calls = 0;
    fail_from = from;
    fail_to = to;
}

/* ---------------------------------------------------------------- what is there */

/* Every path below a folder, with the kind and content of what is there. */
struct picture {
    char *text;
    size_t nbytes;
};

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* By descriptors, since paths may be longer than the system takes. */
static void draw(FILE *out, int at_fd, const char *name, unsigned depth)
{
    struct stat st;
    ck_assert(fstatat(at_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0);
    fprintf(out, "%u %s %o ", depth, name, st.st_mode & S_IFMT);
    if (S_ISREG(st.st_mode)) {
        char bytes[64] = {0};
        int fd = openat(at_fd, name, O_RDONLY);
        ck_assert(fd >= 0 && read(fd, bytes, sizeof bytes - 1) >= 0);
        close(fd);
        fprintf(out, "%s", bytes);
    }
    fputc('\n', out);
    if (!S_ISDIR(st.st_mode))
        return;
    struct dirent **names;
    int fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY);
    int count = scandirat(fd, ".", &names, NULL, by_name);
    ck_assert(count >= 0);
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i]->d_name, ".") && strcmp(names[i]->d_name, ".."))
            draw(out, fd, names[i]->d_name, depth + 1);
        free(names[i]);
    }
    free(names);
    close(fd);
}

static struct picture picture_of(const char *path)
{
    struct picture p = {0};
    FILE *out = open_memstream(&p.text, &p.nbytes);
    draw(out, AT_FDCWD, path, 0);
    fclose(out);
    return p;
}

static bool same_picture(const struct picture *a, const struct picture *b)
{
    return a->nbytes == b->nbytes && !memcmp(a->text, b->text, a->nbytes);
}

/* ---------------------------------------------------------------- archive and folder */

enum { MANY = 12 };

static const char *const names[MANY] = {
    "meta.json",       "a.memmap",       "b.memmap",   "both/meta.json",
    "both/c.memmap",   "both/d.memmap",  "both/new/e", "both/new/deep/f",
    "fresh/meta.json", "fresh/g.memmap", "link",       "fresh/deep/h.memmap",
};

static const struct zr_archive_unpack_options serial = {.thread_count = 1};

static void save_names(const char *path)
{
    struct zr_archive_source sources[MANY + 1];
    static char texts[MANY][40];
    for (size_t i = 0; i < MANY; i++) {
        snprintf(texts[i], sizeof texts[i], "new %s", names[i]);
        sources[i] = (struct zr_archive_source){
            .name = names[i], .data = texts[i], .nbytes = strlen(texts[i])};
    }
    expect_ok(zr_archive_save(path, sources, MANY, NULL, &err));
}

static void put(const char *name, const char *text)
{
    spit(at("dir/%s", name), text, strlen(text));
}

/* Some of the files, one that is none of them, and a link. */
static void make_folder(void)
{
    remove_tree(at("dir"));
    ck_assert(mkdir(at("dir"), 0777) == 0 && mkdir(at("dir/both"), 0777) == 0);
    put("meta.json", "old");
    put("b.memmap", "old");
    put("other", "old");
    put("both/c.memmap", "old");
    ck_assert(symlink("other", at("dir/link")) == 0);
}

static void check_new(void)
{
    for (size_t i = 0; i < MANY; i++) {
        size_t nbytes;
        char wanted[40];
        snprintf(wanted, sizeof wanted, "new %s", names[i]);
        uint8_t *bytes = slurp(at("dir/%s", names[i]), &nbytes);
        ck_assert(nbytes == strlen(wanted) && !memcmp(bytes, wanted, nbytes));
        free(bytes);
    }
    ck_assert_uint_eq(file_nbytes(at("dir/other")), 3);
    ck_assert_uint_eq(entry_count(at("dir")), 7);
    ck_assert_uint_eq(entry_count(at("dir/both")), 4);
}

START_TEST(a_failing_rename_changes_nothing)
{
    save_names(at("a.tdz"));
    for (lack = HAS_ALL; lack <= NO_LINKS; lack++) {
        unsigned k = 1;
        for (bool finished = false; !finished; k++) {
            make_folder();
            struct picture before = picture_of(at("dir"));
            struct zr_error err = {0};
            plan_failure(k, k);
            int rc = zr_archive_unpack(at("a.tdz"), at("dir"), &serial, &err);
            finished = calls < k;
            plan_failure(0, 0);
            struct picture after = picture_of(at("dir"));
            if (rc == ZR_OK) /* a link may fail: then the file is renamed */
                check_new();
            else
                ck_assert_msg(same_picture(&before, &after), "call %u: %s", k, after.text);
            ck_assert(rc == ZR_OK || (rc == ZR_E_IO && strstr(err.message, "cannot write")));
            ck_assert(rc == ZR_OK || !finished);
            free(before.text);
            free(after.text);
        }
        ck_assert_uint_gt(k, 7);
    }
}
END_TEST

static unsigned count_old(const char *text)
{
    unsigned count = 0;
    for (const char *p = text; (p = strstr(p, "old\n")); p++)
        count++;
    return count;
}

START_TEST(what_cannot_be_put_back_is_kept_and_told_of)
{
    save_names(at("a.tdz"));
    for (lack = HAS_ALL; lack <= NO_LINKS; lack++) {
        unsigned stranded = 0;
        for (unsigned k = 1; k < 14; k++) {
            make_folder();
            struct picture before = picture_of(at("dir"));
            struct zr_error err = {0};
            plan_failure(k, UINT_MAX);
            ck_assert_int_eq(zr_archive_unpack(at("a.tdz"), at("dir"), &serial, &err), ZR_E_IO);
            plan_failure(0, 0);
            struct picture after = picture_of(at("dir"));
            if (!same_picture(&before, &after)) {
                stranded++;
                ck_assert_ptr_nonnull(strstr(err.message, "what is missing is in "));
                ck_assert_ptr_nonnull(strstr(after.text, ".zrecord-"));
                /* or more: links to the same file */
                ck_assert_msg(count_old(after.text) >= 4, "%s", after.text);
                /* nor does another unpack clear it away */
                ck_assert_int_eq(zr_archive_unpack(at("a.tdz"), at("dir"), &serial, &err), ZR_OK);
                free(after.text);
                after = picture_of(at("dir"));
                ck_assert_ptr_nonnull(strstr(after.text, ".zrecord-"));
            }
            free(before.text);
            free(after.text);
        }
        ck_assert_uint_gt(stranded, 5);
    }
}
END_TEST

/* ---------------------------------------------------------------- ordinary users */

/* In a child without privileges; Check's lock does not survive the fork. */
static int unpack_as_nobody(char message[1024])
{
    int status, ends[2];
    ck_assert(pipe(ends) == 0);
    pid_t child = fork();
    ck_assert(child >= 0);
    if (child == 0) {
        struct zr_error err = {0};
        if (setgid(65534) || setuid(65534))
            _exit(100);
        int rc = zr_archive_unpack(at("a.tdz"), at("dir"), &serial, &err);
        char text[sizeof err.message] = {0}; /* whose bytes are all written */
        strcpy(text, err.message);
        if (write(ends[1], text, sizeof text) < 0)
            _exit(101);
        _exit(-rc);
    }
    close(ends[1]);
    ck_assert(read(ends[0], message, 1024) == 1024);
    close(ends[0]);
    ck_assert(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static int give_away(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return lchown(path, 65534, 65534);
}

static void refuse_nobody(const char *folder, mode_t mode)
{
    char message[1024];
    nftw(test_dir, give_away, 16, FTW_PHYS);
    ck_assert(chown(at("dir/%s", folder), 0, 0) == 0 && chmod(at("dir/%s", folder), mode) == 0);
    ck_assert(chown(at("dir/%s/c.memmap", folder), 0, 0) == 0);
    struct picture before = picture_of(at("dir"));
    ck_assert_int_eq(unpack_as_nobody(message), ZR_E_PERMISSION);
    ck_assert_msg(strstr(message, "both/") && strstr(message, "cannot write"), "%s", message);
    struct picture after = picture_of(at("dir"));
    ck_assert_msg(same_picture(&before, &after), "%s", after.text);
    free(before.text);
    free(after.text);
}

START_TEST(a_folder_that_refuses_files_leaves_the_others_as_they_were)
{
    if (geteuid() != 0)
        skip_test("needs root, to give a folder to somebody else");
    save_names(at("a.tdz"));
    make_folder();
    refuse_nobody("both", 0755);
    refuse_nobody("both", 01777); /* sticky: its files are their owner's to replace */
    char message[1024];
    nftw(test_dir, give_away, 16, FTW_PHYS);
    ck_assert_msg(unpack_as_nobody(message) == ZR_OK, "%s", message);
    check_new();
}
END_TEST

/* ---------------------------------------------------------------- depth */

enum { DEEP_PARTS = 60, PART_NBYTES = 100 };

static char deep_folder[DEEP_PARTS * (PART_NBYTES + 1) + 1];

static void name_deep(void)
{
    char *p = deep_folder;
    for (size_t i = 0; i < DEEP_PARTS; i++) {
        memset(p, 'a' + (int)(i % 26), PART_NBYTES);
        p[PART_NBYTES] = '/';
        p += PART_NBYTES + 1;
    }
}

/* Two leaves at the end of a path of 6 KiB. */
static void save_deep(const char *path, const char *content)
{
    static char meta[sizeof deep_folder + 20], x[sizeof deep_folder + 20],
        y[sizeof deep_folder + 20];
    snprintf(meta, sizeof meta, "%smeta.json", deep_folder);
    snprintf(x, sizeof x, "%sx.memmap", deep_folder);
    snprintf(y, sizeof y, "%sy.memmap", deep_folder);
    const struct zr_archive_save_options o = {.time_sec = 1000000000};
    const struct zr_archive_source sources[] = {
        {.name = "meta.json", .data = "{}", .nbytes = 2},
        {.name = meta, .data = "{}", .nbytes = 2},
        {.name = x, .data = content, .nbytes = strlen(content), .is_payload = true},
        {.name = y, .data = "y", .nbytes = 1, .is_payload = true},
    };
    expect_ok(zr_archive_save(path, sources, COUNT(sources), &o, &err));
}

/* Removed before the test ends: nftw and rm of a path that long are not for all. */
static void remove_deep(const char *path)
{
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    ck_assert_int_eq(system(command), 0);
}

static void expect_packed_as(const char *archive)
{
    const struct zr_archive_save_options o = {.time_sec = 1000000000};
    size_t a_nbytes, b_nbytes;
    enum lack kept = lack;
    lack = HAS_ALL; /* it is not what packs */
    expect_ok(zr_archive_pack(at("dir"), at("packed.tdz"), &o, &err));
    uint8_t *a = slurp(archive, &a_nbytes), *b = slurp(at("packed.tdz"), &b_nbytes);
    ck_assert(a_nbytes == b_nbytes && !memcmp(a, b, a_nbytes));
    free(a);
    free(b);
    lack = kept;
}

START_TEST(paths_may_be_longer_than_the_system_takes)
{
    name_deep();
    save_deep(at("one.tdz"), "first");
    save_deep(at("two.tdz"), "second");
    expect_ok(zr_archive_unpack(at("one.tdz"), at("dir"), &serial, &err));
    expect_packed_as(at("one.tdz"));
    for (lack = HAS_ALL; lack <= NO_LINKS; lack++) {
        bool finished = false;
        for (unsigned k = 1; !finished; k++) {
            plan_failure(k, k);
            int rc = zr_archive_unpack(at("two.tdz"), at("dir"), &serial, NULL);
            finished = calls < k;
            plan_failure(0, 0);
            expect_packed_as(rc ? at("one.tdz") : at("two.tdz"));
            ck_assert(rc == ZR_OK || !finished);
            if (!rc)
                expect_ok(zr_archive_unpack(at("one.tdz"), at("dir"), &serial, &err));
        }
    }
    remove_deep(at("dir"));
    ck_assert(mkdir(at("dir"), 0777) == 0);
    expect_ok(zr_archive_unpack(at("one.tdz"), at("dir"), &serial, &err));
    expect_packed_as(at("one.tdz"));
    remove_deep(at("dir"));
}
END_TEST

/* More folders in each other than a process may have files open. */
START_TEST(a_failed_unpack_of_any_depth_leaves_nothing)
{
    enum { DEPTH = 3000 };
    static char name[2 * DEPTH + 10];
    for (size_t i = 0; i < DEPTH; i++)
        memcpy(name + 2 * i, "d/", 2);
    strcpy(name + (size_t)2 * DEPTH, "x");
    const struct zr_archive_source sources[] = {
        {.name = "meta.json", .data = "{}", .nbytes = 2},
        {.name = name, .data = "x", .nbytes = 1},
        {.name = "y", .data = "MARK", .nbytes = 4},
    };
    size_t nbytes;
    expect_ok(zr_archive_save(at("a.tdz"), sources, COUNT(sources), NULL, &err));
    uint8_t *bytes = slurp(at("a.tdz"), &nbytes);
    flip(at("a.tdz"), (uint64_t)((uint8_t *)memmem(bytes, nbytes, "MARK", 4) - bytes));
    free(bytes);
    expect_error(zr_archive_unpack(at("a.tdz"), at("dir"), &serial, &err), ZR_E_CHECKSUM,
                 "member y");
    ck_assert_uint_eq(entry_count(test_dir), 1);
}
END_TEST

/* As many files as the next call may open. */
static void limit_files(rlim_t count)
{
    struct rlimit limit;
    int next = count == RLIM_INFINITY ? -1 : dup(0);
    ck_assert(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (next >= 0)
        close(next);
    limit.rlim_cur = next < 0 ? limit.rlim_max : (rlim_t)next + count;
    ck_assert(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* From a count that no unpack can do with to one that leaves nothing to wish for. */
START_TEST(few_files_that_may_be_open_leave_nothing)
{
    const struct zr_archive_source sources[] = {
        {.name = "meta.json", .data = "{}", .nbytes = 2},
        {.name = "d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/x", .data = "x", .nbytes = 1},
        {.name = "d/d/d/d/d/d/d/d/d/d/d/d/e/e/e/e/e/e/e/e/e/e/e/e/x", .data = "x", .nbytes = 1},
    };
    bool done = false;
    expect_ok(zr_archive_save(at("a.tdz"), sources, COUNT(sources), NULL, &err));
    ck_assert(mkdir(at("dir"), 0777) == 0);
    for (rlim_t count = 0; count < 24; count++) {
        struct zr_error err = {0};
        limit_files(count);
        int rc = zr_archive_unpack(at("a.tdz"), at("dir"), &serial, &err);
        limit_files(RLIM_INFINITY);
        ck_assert_msg(rc == ZR_OK || strstr(err.message, "open files"), "%s", err.message);
        done |= rc == ZR_OK;
        ck_assert_msg(entry_count(at("dir")) == (done ? 2 : 0), "%u files", (unsigned)count);
    }
    ck_assert(done);
}
END_TEST

/* ---------------------------------------------------------------- one after the other */

static pthread_t other;
static sem_t other_waits;
static bool other_is_done;
static unsigned other_asked;

static int ask_other(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    if (done == total && ++other_asked == 10)
        sem_post(&other_waits);
    return 0;
}

static void *unpack_other(void *ctx)
{
    const struct zr_archive_unpack_options o = {.thread_count = 1, .progress = ask_other};
    (void)ctx;
    expect_ok(zr_archive_unpack(at("two.tdz"), at("dir"), &o, &err));
    other_is_done = true;
    sem_post(&other_waits);
    return NULL;
}

/* In the middle of one: the other is started, and comes to its end or has to wait. */
static void start_other(void)
{
    if (calls < 3)
        return;
    on_call = NULL;
    ck_assert(pthread_create(&other, NULL, unpack_other, NULL) == 0);
    sem_wait(&other_waits);
    ck_assert(!other_is_done);
}

START_TEST(two_unpacks_into_one_folder_take_turns)
{
    const struct zr_archive_source sources[] = {
        {.name = "meta.json", .data = "{}", .nbytes = 2},
        {.name = "a.memmap", .data = "other", .nbytes = 5},
        {.name = "b.memmap", .data = "other", .nbytes = 5},
    };
    save_names(at("a.tdz"));
    expect_ok(zr_archive_save(at("two.tdz"), sources, COUNT(sources), NULL, &err));
    make_folder();
    sem_init(&other_waits, 0, 0);
    zri_watch_nsec = 0;
    on_call = start_other;
    expect_ok(zr_archive_unpack(at("a.tdz"), at("dir"), &serial, &err));
    pthread_join(other, NULL);
    ck_assert_uint_eq(file_nbytes(at("dir/a.memmap")), 5);
    ck_assert_uint_eq(file_nbytes(at("dir/b.memmap")), 5);
    ck_assert_uint_eq(entry_count(at("dir")), 7);
    sem_destroy(&other_waits);
}
END_TEST

static unsigned die_at;

static void die(void)
{
    if (calls == die_at)
        raise(SIGKILL);
}

static int die_asked(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx, (void)done, (void)total;
    return raise(SIGKILL);
}

static void unpack_and_die(unsigned call)
{
    const struct zr_archive_unpack_options o = {.thread_count = 1,
                                                .progress = call ? NULL : die_asked};
    int status;
    pid_t child = fork();
    if (child == 0) {
        calls = 0;
        die_at = call;
        on_call = die;
        zr_archive_unpack(at("a.tdz"), at("dir"), &o, NULL);
        _exit(0);
    }
    ck_assert(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

/* While members are written, and at each of the renames. */
START_TEST(a_killed_unpack_is_cleared_away_by_the_next)
{
    save_names(at("a.tdz"));
    for (unsigned call = 0; call < 8; call++) {
        make_folder();
        unpack_and_die(call);
        ck_assert_uint_gt(entry_count(at("dir")), 5);
        ck_assert(unlink(at("dir/link")) == 0);
        expect_ok(zr_archive_pack(at("dir"), at("left.tdz"), NULL, &err)); /* none of the stage */
        expect_ok(zr_archive_unpack(at("left.tdz"), at("left"), &serial, &err));
        ck_assert_uint_le(entry_count(at("left")), 7);
        remove_tree(at("left"));
        expect_ok(zr_archive_unpack(at("a.tdz"), at("dir"), &serial, &err));
        check_new();
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_failing_rename_changes_nothing,
        what_cannot_be_put_back_is_kept_and_told_of,
        a_folder_that_refuses_files_leaves_the_others_as_they_were,
        paths_may_be_longer_than_the_system_takes,
        a_failed_unpack_of_any_depth_leaves_nothing,
        few_files_that_may_be_open_leave_nothing,
        two_unpacks_into_one_folder_take_turns,
        a_killed_unpack_is_cleared_away_by_the_next,
    };
    return run_tests("archive_place", tests, COUNT(tests), 120);
}
