/* SPDX-License-Identifier: MIT
 *
 * zrecord ctl: shows the status of a mount, or sends it a command, through its
 * control file; the mount may be read-only.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools.h"

static const struct option long_options[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

/* The control file of the folder, or of the one the file lies in. */
static int open_control(const char *place)
{
    char *path;

    if (asprintf(&path, "%s/.control", place) < 0) {
        fail_nomem();
        return -1;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        diag("%s: not a folder of a mount of zrecordfs: it has no .control", place);
    else if (fd < 0)
        fail_errno(path);
    free(path);
    return fd;
}

static int show_status(int fd, const char *place)
{
    char buf[65536];
    ssize_t n;

    while ((n = read(fd, buf, sizeof buf)) > 0)
        fwrite(buf, 1, (size_t)n, stdout);
    return n < 0 ? fail_errno(place) : EXIT_FINE;
}

/* The words with a space between; false when they are too many. */
static bool join_words(struct zr_mount_ctl *ctl, int count, char **words)
{
    for (int i = 0; i < count; i++) {
        size_t n = strlen(words[i]);
        if (n + 1 > sizeof ctl->text - ctl->nbytes)
            return false;
        if (i > 0)
            ctl->text[ctl->nbytes++] = ' ';
        memcpy(ctl->text + ctl->nbytes, words[i], n);
        ctl->nbytes += (uint32_t)n;
    }
    return true;
}

static int send_command(int fd, const char *place, int count, char **words)
{
    struct zr_mount_ctl ctl = {0};

    if (!join_words(&ctl, count, words))
        return usage_error("the command is too long");
    if (ioctl(fd, ZR_MOUNT_CTL, &ctl) != 0) {
        if (errno != ENOTTY)
            return fail_errno(place);
        diag("%s: not a mount of zrecordfs, or of an older one", place);
        return EXIT_FAILED;
    }
    int nbytes = (int)(ctl.nbytes < sizeof ctl.text ? ctl.nbytes : sizeof ctl.text);
    if (ctl.failure == 0) {
        printf("%.*s\n", nbytes, ctl.text);
        return EXIT_FINE;
    }
    diag("%s: %.*s", words[0], nbytes, ctl.text);
    return ctl.failure == EINVAL ? EXIT_USAGE : EXIT_FAILED;
}

static int run(int argc, char **argv)
{
    int option = getopt_long(argc, argv, "+h", long_options, NULL);

    if (option != -1)
        return option == 'h' ? show_help() : usage_hint();
    if (optind == argc)
        return usage_error("a folder of a mount is missing");
    const char *place = argv[optind++];
    int fd = open_control(place);
    if (fd < 0)
        return EXIT_FAILED;
    bool is_status = optind == argc || (strcmp(argv[optind], "status") == 0 && optind + 1 == argc);
    int status =
        is_status ? show_status(fd, place) : send_command(fd, place, argc - optind, argv + optind);
    close(fd);
    return status;
}

const struct command cmd_ctl = {
    .name = "ctl",
    .arguments = "FOLDER [COMMAND...]",
    .summary = "Show the status of a mount, or send it a command",
    .options = "FOLDER is the mountpoint; in a mount of a tree, that of a store.  Commands:\n"
               "  status               what the mount is and has done, as JSON (the default)\n"
               "  prefetch SELECTION   decode these records into the page cache: 0,5,2 or\n"
               "                       0:256 or 0:1000:10\n"
               "  drop SELECTION       forget these records\n"
               "  stats reset          counters start from 0\n"
               "  log LEVEL            log error, warning, info or debug and above\n\n"
               "  -h, --help           this text\n",
    .run = run,
};
