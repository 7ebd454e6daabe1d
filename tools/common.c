/* SPDX-License-Identifier: MIT
 *
 * Diagnostics, strict parsing, signals and small file helpers for the
 * subcommands.  Nothing here knows about any one of them.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools.h"

const struct command *current_command;

/* ---------------------------------------------------------------- messages */

static void vdiag(const char *format, va_list args)
{
    progress_erase();
    fputs("zrecord: ", stderr);
    if (current_command)
        fprintf(stderr, "%s: ", current_command->name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

void diag(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vdiag(format, args);
    va_end(args);
}

int usage_hint(void)
{
    fprintf(stderr, "Usage: zrecord %s [OPTION]... %s\n", current_command->name,
            current_command->arguments);
    fprintf(stderr, "Try 'zrecord %s --help'.\n", current_command->name);
    return EXIT_USAGE;
}

int usage_error(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vdiag(format, args);
    va_end(args);
    return usage_hint();
}

int show_help(void)
{
    printf("Usage: zrecord %s [OPTION]... %s\n%s.\n\n%s", current_command->name,
           current_command->arguments, current_command->summary, current_command->options);
    return EXIT_FINE;
}

int expect_arguments(int argc, int count)
{
    if (argc - optind == count)
        return 0;
    return usage_error(argc - optind < count ? "too few arguments" : "too many arguments");
}

int fail(const struct zr_error *err)
{
    diag("%s", err->message[0] ? err->message : zr_code_text(err->code));
    return EXIT_FAILED;
}

int fail_errno(const char *path)
{
    diag("%s: %s", *path ? path : "''", strerror(errno)); /* as ls has an empty name */
    return EXIT_FAILED;
}

int fail_nomem(void)
{
    diag("out of memory");
    return EXIT_FAILED;
}

/* ---------------------------------------------------------------- numbers and names */

bool parse_u64(const char *text, uint64_t *value)
{
    uint64_t result = 0;

    if (*text == '\0')
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        if (__builtin_mul_overflow(result, 10u, &result) ||
            __builtin_add_overflow(result, (uint64_t)(*text - '0'), &result))
            return false;
    }
    *value = result;
    return true;
}

bool parse_int(const char *text, int min, int max, int *value)
{
    bool negative = text[0] == '-';
    uint64_t magnitude;

    if (!parse_u64(text + negative, &magnitude) || magnitude > INT32_MAX)
        return false;
    int result = negative ? -(int)magnitude : (int)magnitude;
    if (result < min || result > max)
        return false;
    *value = result;
    return true;
}

const char *shape_text(uint32_t ndim, const uint64_t *shape, char *buf)
{
    char *p = buf;

    *p++ = '(';
    for (uint32_t i = 0; i < ndim; i++)
        p += sprintf(p, "%s%" PRIu64, i ? ", " : "", shape[i]);
    sprintf(p, "%s", ndim == 1 ? ",)" : ")");
    return buf;
}

const char *size_text(uint64_t nbytes, char *buf)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)nbytes;
    size_t unit = 0;

    for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        value /= 1024;
    snprintf(buf, SIZE_TEXT_MAX, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return buf;
}

const char *record_name(uint64_t id, uint64_t length, char *buf)
{
    int width = length > 1 ? snprintf(NULL, 0, "%" PRIu64, length - 1) : 1;

    snprintf(buf, NAME_TEXT_MAX, "%0*" PRIu64 ".npy", width < 8 ? 8 : width, id);
    return buf;
}

double seconds_since(const struct timespec *start)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) / 1e9;
}

/* ---------------------------------------------------------------- stores and files */

int open_store(struct zr_reader **r, const char *path, const struct zr_reader_options *options)
{
    struct zr_error err;

    if (zr_reader_open(r, path, options, &err) != ZR_OK) {
        fail(&err);
        if (err.code == ZR_E_FORMAT)
            hint_no_store(path);
        return EXIT_FAILED;
    }
    if (zr_reader_warning(*r))
        diag("warning: %s", zr_reader_warning(*r));
    return 0;
}

bool is_store(const char *path)
{
    char *meta;

    if (asprintf(&meta, "%s/meta.zr", path) < 0)
        return false;
    bool found = access(meta, F_OK) == 0;
    free(meta);
    return found;
}

int refuse_existing(const char *path)
{
    struct stat st;

    if (lstat(path, &st) == 0)
        errno = EEXIST;
    else if (errno == ENOENT)
        return 0;
    return fail_errno(path);
}

int64_t read_at(int fd, void *data, size_t nbytes, uint64_t offset)
{
    size_t done = 0;

    while (done < nbytes) {
        ssize_t n = pread(fd, (char *)data + done, nbytes - done, (off_t)(offset + done));
        if (n == 0)
            break;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return (int64_t)done;
}

bool write_all(int fd, const void *data, size_t nbytes)
{
    const char *p = data;

    while (nbytes > 0) {
        ssize_t n = write(fd, p, nbytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        p += n;
        nbytes -= (size_t)n;
    }
    return true;
}

static int read_open_file(int fd, const char *path, size_t max_nbytes, void **data, size_t *nbytes)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return fail_errno(path);
    if (!S_ISREG(st.st_mode) || st.st_size == 0 || (uint64_t)st.st_size > max_nbytes) {
        diag("%s: not a file of 1 to %zu bytes", path, max_nbytes);
        return EXIT_FAILED;
    }
    *data = zr_buffer_alloc((size_t)st.st_size);
    if (!*data)
        return fail_nomem();
    int64_t n = read_at(fd, *data, (size_t)st.st_size, 0);
    *nbytes = n < 0 ? 0 : (size_t)n;
    return n < 0 ? fail_errno(path) : 0;
}

int read_file(const char *path, size_t max_nbytes, void **data, size_t *nbytes)
{
    *data = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return fail_errno(path);
    int status = read_open_file(fd, path, max_nbytes, data, nbytes);
    close(fd);
    return status;
}

/* ---------------------------------------------------------------- signals */

static volatile sig_atomic_t caught_signal;

static void remember_signal(int number)
{
    caught_signal = number;
}

void signals_catch(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = remember_signal, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction old;
        sigaction(numbers[i], NULL, &old);
        if (old.sa_handler != SIG_IGN) /* nohup stays nohup */
            sigaction(numbers[i], &action, NULL);
    }
}

int signals_pending(void)
{
    return caught_signal;
}

void signals_die_if_pending(void)
{
    if (!caught_signal)
        return;
    signal(caught_signal, SIG_DFL);
    raise(caught_signal);
}
