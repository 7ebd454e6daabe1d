/* SPDX-License-Identifier: MIT
 *
 * zrecord mount: starts zrecordfs on a store.  The mount is zrecordfs's work; here
 * its folder is made when missing and removed again when the mount fails.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tools.h"

#define MAX_WORDS 64 /* of zrecordfs's command line */

/* Beside this program, else by PATH. */
static const char *find_daemon(char *buf, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", buf, size - sizeof "zrecordfs");

    if (n <= 0)
        return "zrecordfs";
    while (buf[n - 1] != '/')
        n--;
    snprintf(buf + n, size - (size_t)n, "zrecordfs");
    return access(buf, X_OK) == 0 ? buf : "zrecordfs";
}

/* Makes the folder when nothing is there; *made says whether it was. */
static int make_mountpoint(const char *path, bool *made)
{
    *made = mkdir(path, 0777) == 0;
    if (*made)
        setxattr(path, ZR_MOUNT_MADE, "1", 1, 0); /* without it the folder just stays */
    else if (errno != EEXIST)
        return fail_errno(path);
    return 0;
}

/* Which fails as long as something is mounted there, as it should; a daemon that has failed may
 * be unmounting still. */
static void remove_mountpoint(const char *path, bool has_failed)
{
    enum { TRIES = 100, PAUSE_USEC = 20000 };
    for (int i = 0; rmdir(path) != 0 && errno == EBUSY && has_failed && i < TRIES; i++)
        usleep(PAUSE_USEC);
}

struct words {
    char *argv[MAX_WORDS + 4]; /* and "--", store, folder, NULL */
    int count;
};

static int add_word(struct words *w, char *word)
{
    if (w->count == MAX_WORDS)
        return usage_error("too many options");
    w->argv[w->count++] = word;
    return 0;
}

static int start_daemon(struct words *w, char *store, char *mountpoint)
{
    static char end_of_options[] = "--"; /* paths may begin with a dash */
    char path[PATH_MAX];
    bool made;
    int status = make_mountpoint(mountpoint, &made);

    if (status)
        return status;
    w->argv[w->count++] = end_of_options;
    w->argv[w->count++] = store;
    w->argv[w->count++] = mountpoint;
    w->argv[w->count] = NULL;
    const char *program = find_daemon(path, sizeof path);
    status = run_program(program, w->argv);
    if (status < 0)
        diag("zrecordfs: %s (looked beside zrecord and in PATH)", strerror(errno));
    if (made)
        remove_mountpoint(mountpoint, status != 0);
    return status == 0 || status == EXIT_USAGE ? status : EXIT_FAILED;
}

static const struct option long_options[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

static int take_option(struct words *w, int option)
{
    static char flags[][3] = {"-f", "-d", "-s", "-o"};

    switch (option) {
    case 'f':
        return add_word(w, flags[0]);
    case 'd':
        return add_word(w, flags[1]);
    case 's':
        return add_word(w, flags[2]);
    case 'o':
        return add_word(w, flags[3]) || add_word(w, optarg) ? EXIT_USAGE : 0;
    default:
        return usage_hint();
    }
}

static int run(int argc, char **argv)
{
    static char name[] = "zrecordfs";
    struct words w = {.argv = {name}, .count = 1};
    int status = 0;

    for (int option;
         !status && (option = getopt_long(argc, argv, "o:fdsh", long_options, NULL)) != -1;) {
        if (option == 'h')
            return show_help();
        status = take_option(&w, option);
    }
    if (!status)
        status = expect_arguments(argc, 2);
    return status ? status : start_daemon(&w, argv[optind], argv[optind + 1]);
}

const struct command cmd_mount = {
    .name = "mount",
    .arguments = "STORE FOLDER",
    .summary = "Show the records of a store as .npy files in a folder",
    .options = "Runs zrecordfs, found beside this program or in PATH.  FOLDER is made when it is\n"
               "missing, and then removed again by zrecord umount, or when timeout= has passed.\n\n"
               "  -o OPTIONS   passed on to zrecordfs, see zrecordfs --help\n"
               "  -f, -d, -s   passed on: stay in the foreground, debug, one thread\n"
               "  -h, --help   this text\n",
    .run = run,
};
