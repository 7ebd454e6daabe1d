/* SPDX-License-Identifier: MIT
 *
 * Checks of a mountpoint, and the few things done to it.  A mountpoint under a
 * dead daemon is recognised through mountinfo, never by trusting stat: the
 * attributes of a dead mount may still be cached.
 */
#include "mountpoint.h"

#include "zrecord.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

extern char **environ;

enum { KERNEL_READ_AHEAD_KIB = 128, MAX_READ_AHEAD_KIB = 1024, STACKED_MAX = 16 };
static const char MOUNTINFO[] = "/proc/self/mountinfo";
static const char OWN_TYPE[] = "fuse.zrecordfs";

struct why {
    char *text;
    size_t nbytes;
};

static int fail(const struct why *why, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static int fail(const struct why *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, why->nbytes, format, args);
    va_end(args);
    return -1;
}

/* ---------------------------------------------------------------- mountinfo */

struct mount_entry {
    char type[64];
    char source[PATH_MAX];
};

/* Undoes mountinfo's \ooo in place. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        if (from[0] == '\\' && from[1] && from[2] && from[3]) {
            *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* One line: "36 35 98:0 /inside /mount/point opts [tags] - type source superopts". */
static bool parse_line(char *line, const char *path, struct mount_entry *entry)
{
    char *field = line, *point = NULL;
    for (int i = 0; i < 5 && field; i++)
        point = strsep(&field, " ");
    char *rest = field ? strstr(field, "- ") : NULL;
    while (rest && rest != field && rest[-1] != ' ')
        rest = strstr(rest + 1, "- ");
    if (!point || !rest)
        return false;
    unescape(point);
    if (strcmp(point, path) != 0)
        return false;
    rest += 2;
    const char *type = strsep(&rest, " ");
    char *source = rest ? strsep(&rest, " \n") : NULL;
    if (source)
        unescape(source);
    snprintf(entry->type, sizeof entry->type, "%s", type);
    snprintf(entry->source, sizeof entry->source, "%s", source ? source : "");
    return true;
}

/* The topmost mount on that very path. */
static bool find_mount(const char *path, struct mount_entry *entry)
{
    FILE *file = fopen(MOUNTINFO, "re");
    if (!file)
        return false;
    char *line = NULL;
    size_t capacity = 0;
    bool found = false;
    while (getline(&line, &capacity, file) > 0)
        if (parse_line(line, path, entry))
            found = true; /* a later line lies on top */
    free(line);
    fclose(file);
    return found;
}

/* ---------------------------------------------------------------- dead mounts */

static int detach_as_user(const char *path, bool lazily)
{
    char *argv[] = {"fusermount3", lazily ? "-uz" : "-u", "-q", "--", (char *)path, NULL};
    pid_t pid;
    int status;
    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0)
        return -1;
    if (waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

static int detach(const char *path)
{
    if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
        return 0;
    return detach_as_user(path, true);
}

static bool is_dead(const char *path)
{
    struct statvfs st; /* always asks the daemon */
    if (statvfs(path, &st) == 0)
        return false;
    /* ECANCELED: the kernel is taking the rings of a daemon down that was killed just now. */
    return errno == ENOTCONN || errno == ECONNABORTED || errno == ECANCELED;
}

/* Refuses a path that is mounted on, after clearing dead mounts of ours. */
static int check_mounts(const char *path, const struct why *why)
{
    struct mount_entry entry;
    for (int i = 0; i < STACKED_MAX && find_mount(path, &entry); i++) {
        if (strcmp(entry.type, "autofs") == 0)
            return 0; /* an automounter's trigger: this is what it waits for */
        bool dead = is_dead(path);
        if (!dead)
            return fail(why,
                        "%s is busy: %s (%s) is mounted there; `fusermount3 -u %s` or `umount %s` "
                        "ends that mount",
                        path, entry.source, entry.type, path, path);
        if (strcmp(entry.type, OWN_TYPE) != 0)
            return fail(
                why,
                "%s holds a dead mount of another program (%s); `fusermount3 -u -z %s` clears it",
                path, entry.type, path);
        if (detach(path) != 0)
            return fail(
                why, "%s holds a dead mount of another user; root can clear it with `umount -l %s`",
                path, path);
    }
    return 0;
}

/* ---------------------------------------------------------------- checks */

static int explain_path(const char *path, int error, const struct why *why)
{
    switch (error) {
    case ENOENT:
        return fail(why, "mountpoint %s does not exist; make the folder first: mkdir -p %s", path,
                    path);
    case ENOTDIR:
        return fail(why, "mountpoint %s is not a folder", path);
    case EACCES:
        return fail(why, "no permission to reach mountpoint %s", path);
    default:
        return fail(why, "mountpoint %s: %s", path, strerror(error));
    }
}

static int check_folder(const char *path, const struct why *why)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return explain_path(path, errno, why);
    if (!S_ISDIR(st.st_mode))
        return explain_path(path, ENOTDIR, why);
    if (access(path, W_OK) != 0 && errno == EACCES)
        return fail(why,
                    "no permission to mount on %s: the folder has to be writable for you; choose "
                    "one of yours",
                    path);
    return 0;
}

static int check_device(const struct why *why)
{
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        return 0;
    }
    if (errno == EACCES || errno == EPERM)
        return fail(
            why, "no permission to open /dev/fuse: root can allow it with `chmod 0666 /dev/fuse` "
                 "(in a container: run it with --device /dev/fuse --cap-add "
                 "SYS_ADMIN); " MOUNTPOINT_EXPORT_HINT);
    return fail(why,
                "cannot open /dev/fuse (%s): load the module with `modprobe fuse` "
                "(in a container: run it with --device /dev/fuse --cap-add "
                "SYS_ADMIN); " MOUNTPOINT_EXPORT_HINT,
                strerror(errno));
}

static bool is_in_path(const char *program)
{
    const char *dirs = getenv("PATH");
    char candidate[PATH_MAX];
    for (const char *dir = dirs ? dirs : "/usr/bin:/bin"; *dir;) {
        size_t nbytes = strcspn(dir, ":");
        snprintf(candidate, sizeof candidate, "%.*s/%s", (int)nbytes, dir, program);
        if (access(candidate, X_OK) == 0)
            return true;
        dir += nbytes + (dir[nbytes] == ':');
    }
    return false;
}

static int check_helper(const struct why *why)
{
    if (access("/usr/bin/fusermount3", X_OK) == 0 || is_in_path("fusermount3"))
        return 0;
    return fail(why, "fusermount3 is missing, without which only root can mount: install the "
                     "package fuse3; " MOUNTPOINT_EXPORT_HINT);
}

static int check_allow_other(const struct why *why)
{
    FILE *file = fopen("/etc/fuse.conf", "re");
    char line[256];
    bool allowed = false;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, " \t\r\n#")] = '\0';
        allowed |= strcmp(line, "user_allow_other") == 0;
    }
    if (file)
        fclose(file);
    if (allowed)
        return 0;
    return fail(why, "option allow_other is for root, unless root adds the line user_allow_other "
                     "to /etc/fuse.conf");
}

static int check_all(const char *path, bool allow_other, const struct why *why)
{
    if (check_mounts(path, why) != 0 || check_folder(path, why) != 0 || check_device(why) != 0)
        return -1;
    if (geteuid() == 0)
        return 0;
    if (check_helper(why) != 0)
        return -1;
    return allow_other ? check_allow_other(why) : 0;
}

int mountpoint_prepare(const char *path, bool allow_other, char **absolute, char *why_text,
                       size_t why_nbytes)
{
    const struct why why = {why_text, why_nbytes};
    /* Works on dead mounts too: it asks for links only, which the kernel knows. */
    char *resolved = realpath(path, NULL);
    if (!resolved)
        return explain_path(path, errno, &why);
    if (check_all(resolved, allow_other, &why) != 0) {
        free(resolved);
        return -1;
    }
    *absolute = resolved;
    return 0;
}

/* ---------------------------------------------------------------- afterwards */

int mountpoint_await(const char *absolute)
{
    struct stat st;
    struct mount_entry entry;
    if (stat(absolute, &st) != 0)
        return errno;
    if (access(MOUNTINFO, R_OK) != 0)
        return 0; /* no /proc: stat has to do */
    if (!find_mount(absolute, &entry) || strcmp(entry.type, OWN_TYPE) != 0)
        return ENXIO; /* it has been unmounted meanwhile */
    return 0;
}

int mountpoint_detach(const char *absolute)
{
    if (umount2(absolute, UMOUNT_NOFOLLOW) == 0)
        return 0;
    return errno == EPERM ? detach_as_user(absolute, false) : -1;
}

void mountpoint_remove_made(const char *absolute)
{
    if (lgetxattr(absolute, ZR_MOUNT_MADE, NULL, 0) >= 0)
        rmdir(absolute); /* fails where something is in it, or mounted there */
}

void mountpoint_set_read_ahead(const char *absolute, uint64_t file_nbytes)
{
    uint64_t kib = (file_nbytes + 4095) / 4096 * 4;
    if (kib > MAX_READ_AHEAD_KIB)
        kib = MAX_READ_AHEAD_KIB;
    struct stat st;
    if (kib <= KERNEL_READ_AHEAD_KIB || stat(absolute, &st) != 0)
        return;
    char path[64];
    snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", major(st.st_dev),
             minor(st.st_dev));
    FILE *file = fopen(path, "we"); /* root only */
    if (!file)
        return;
    fprintf(file, "%llu\n", (unsigned long long)kib);
    fclose(file);
}
