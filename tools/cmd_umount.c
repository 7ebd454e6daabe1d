/* SPDX-License-Identifier: MIT
 *
 * zrecord umount: ends a mount of zrecordfs, also one whose daemon has died, and
 * removes its folder if `zrecord mount` made it and it is empty.
 */
#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tools.h"

#define MOUNT_TYPE "fuse.zrecordfs"

static const struct option long_options[] = {
    {"lazy", no_argument, NULL, 'z'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

/* Absolute, through its parent: a stale mount itself does not answer. */
static char *resolve_by_parent(const char *path)
{
    char *copy = strdup(path), *copy2 = strdup(path), *result = NULL;
    char *parent = copy ? realpath(dirname(copy), NULL) : NULL;

    if (parent && copy2 &&
        asprintf(&result, "%s/%s", strcmp(parent, "/") ? parent : "", basename(copy2)) < 0)
        result = NULL;
    free(parent);
    free(copy);
    free(copy2);
    return result;
}

static char *resolve(const char *path)
{
    char *result = realpath(path, NULL);

    return result ? result : resolve_by_parent(path);
}

/* The type of the topmost mount at exactly this path, "" when there is none. */
static void mount_type(const char *path, char *type, size_t size)
{
    FILE *table = setmntent("/proc/self/mounts", "re");
    const struct mntent *entry;

    type[0] = '\0';
    if (!table)
        return;
    while ((entry = getmntent(table)))
        if (strcmp(entry->mnt_dir, path) == 0)
            snprintf(type, size, "%s", entry->mnt_type);
    endmntent(table);
}

static int check_mounted(const char *shown, const char *type)
{
    if (strcmp(type, MOUNT_TYPE) == 0)
        return 0;
    if (type[0])
        diag("%s: a mount of type %s, not of zrecordfs", shown, type);
    else
        diag("%s: nothing is mounted there", shown);
    return EXIT_FAILED;
}

static int detach_as_root(const char *shown, const char *path, bool lazy)
{
    if (umount2(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0)
        return 0;
    if (errno != EBUSY)
        return fail_errno(shown);
    diag("%s: busy: a program has a file or folder of it open, or is in it (--lazy detaches it all"
         " the same)",
         shown);
    return EXIT_FAILED;
}

static int detach_as_user(const char *shown, char *path, bool lazy)
{
    static char name[] = "fusermount3", plain[] = "-u", detach[] = "-uz", end[] = "--";
    char *argv[] = {name, lazy ? detach : plain, end, path, NULL};
    int status = run_program(name, argv);

    if (status < 0)
        diag("fusermount3: %s (it comes with the package fuse3)", strerror(errno));
    else if (status > 0)
        diag("%s: still mounted (--lazy detaches a busy mount)", shown);
    return status ? EXIT_FAILED : 0;
}

/* Whether the folder was made by zrecord mount, empty, and is gone now. */
static bool remove_made(const char *path)
{
    return getxattr(path, ZR_MOUNT_MADE, NULL, 0) >= 0 && rmdir(path) == 0;
}

static int detach(const char *shown, char *path, bool lazy)
{
    char type[64];

    mount_type(path, type, sizeof type);
    if (!type[0] && remove_made(path))
        return 0; /* what a mount left that ended otherwise */
    int status = check_mounted(shown, type);
    if (status)
        return status;
    status = geteuid() == 0 ? detach_as_root(shown, path, lazy) : detach_as_user(shown, path, lazy);
    if (!status)
        remove_made(path);
    return status;
}

static int run(int argc, char **argv)
{
    bool lazy = false;

    for (int option; (option = getopt_long(argc, argv, "zh", long_options, NULL)) != -1;) {
        if (option == 'h')
            return show_help();
        if (option != 'z')
            return usage_hint();
        lazy = true;
    }
    int status = expect_arguments(argc, 1);
    if (status)
        return status;
    char *path = resolve(argv[optind]);
    if (!path)
        return fail_errno(argv[optind]);
    status = detach(argv[optind], path, lazy);
    free(path);
    return status;
}

const struct command cmd_umount = {
    .name = "umount",
    .arguments = "FOLDER",
    .summary = "End a mount, also one whose zrecordfs has died",
    .options = "The folder is removed when zrecord mount made it and it is empty, also when\n"
               "nothing is mounted there any more.\n\n"
               "  -z, --lazy   detach it now although it is in use\n"
               "  -h, --help   this text\n",
    .run = run,
};
