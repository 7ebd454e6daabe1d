/* SPDX-License-Identifier: MIT
 *
 * zrecordfs: stores as folders of .npy files.  This file is the life of a
 * mount: open, mount, go to the background, serve, end.
 *
 * The order matters.  Paths are resolved and the store is opened by the command
 * that the user sees, so errors are its errors; threads start only after going
 * to the background, since they do not survive a fork; and the command returns
 * when the mount answers, not before.
 */
#include "loop.h"
#include "mountpoint.h"
#include "archive.h"
#include "deadline.h"
#include "ops.h"
#include "service.h"
#include "transport.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

enum {
    ANSWER_TIMEOUT_MSEC = 30000,
    END_TIMEOUT_SEC = 10, /* for what is in flight: a disk may hang, or the kernel */
    MINTED_MAX_COUNT = 65536,
    MINTED_MAX_NBYTES = 16 << 20,
    IDLE_BUFFER_NBYTES = 8 << 20,
    SIZE_SAMPLES = 64,
    WHY_NBYTES = 2 * PATH_MAX + 512
};

struct mount {
    struct options options;
    struct fs fs;
    char *source;     /* absolute */
    char *mountpoint; /* absolute */
    struct fuse_session *session;
    struct transport *transport;
    int answer_fd; /* to the waiting command; -1 in the foreground */
};

/* ---------------------------------------------------------------- libfuse's log */

static char last_fuse_message[512];

/* Before the mount stands, libfuse says why it failed through its log. */
static void keep_fuse_log(enum fuse_log_level level, const char *format, va_list args)
{
    (void)level;
    vsnprintf(last_fuse_message, sizeof last_fuse_message, format, args);
    last_fuse_message[strcspn(last_fuse_message, "\n")] = '\0';
}

static void pass_fuse_log(enum fuse_log_level level, const char *format, va_list args)
{
    char line[1024];
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = '\0';
    report((int)level, "%s", line); /* the levels are those of syslog */
}

/* ---------------------------------------------------------------- open */

struct found {
    const struct fs *fs;
    bool has_labels; /* some store that classes= names */
};

static void report_source(void *ctx, struct source *source, const char *relative, const char *why)
{
    struct found *found = ctx;
    const char *warning = NULL;
    if (!why && source->kind == SOURCE_STORE) {
        warning = zr_reader_warning(source->reader);
        found->has_labels |= classes_are_of(found->fs, source);
    }
    if (why)
        report(LOG_WARNING, "%s cannot be shown: %s", relative, why);
    if (warning)
        report(LOG_WARNING, "%s", warning);
}

/* What can be done with a file that is no source. */
static const char *hint(const char *path)
{
    const char *suffix = strrchr(path, '.');
    struct stat st;
    bool is_array = suffix && (strcmp(suffix, ".npy") == 0 || strcmp(suffix, ".npz") == 0);
    return is_array && stat(path, &st) == 0 && S_ISREG(st.st_mode)
               ? "; `zrecord import` makes a store of it"
               : "";
}

static int open_source(struct mount *m, const char *mountpoint)
{
    struct zr_error err;
    m->source = realpath(m->options.source, NULL);
    const struct sources_options options = {
        .path = m->source ? m->source : m->options.source,
        .mountpoint = mountpoint,
        .checksums = m->options.checksums,
        .shard_length = m->options.shard_length,
        .writable = m->options.writable_leaves,
    };
    if (sources_new(&m->fs.sources, &options, &err) != ZR_OK) {
        report(LOG_ERR, "%s%s", err.message, hint(options.path));
        return -1;
    }
    struct source *root = sources_root(m->fs.sources);
    if (m->options.classes && root->kind == SOURCE_STORE) {
        report(LOG_ERR, "classes= needs a folder of stores, and %s is one store", root->path);
        return -1;
    }
    struct found found = {.fs = &m->fs};
    m->fs.options = &m->options;
    report_source(&found, root, "", NULL);
    sources_walk(m->fs.sources, root, report_source, &found);
    if (m->options.classes && !found.has_labels)
        report(LOG_WARNING, CLASSES_NONE, m->options.classes, root->path);
    return 0;
}

static void fill_owner(struct mount *m)
{
    struct stat st = {.st_uid = geteuid(), .st_gid = getegid()};
    (void)stat(m->source ? m->source : m->options.source, &st);
    m->fs.uid = m->options.has_uid ? m->options.uid : st.st_uid;
    m->fs.gid = m->options.has_gid ? m->options.gid : st.st_gid;
}

static void fill_fs(struct mount *m)
{
    struct fs *fs = &m->fs;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    fs->options = &m->options;
    fs->mountpoint = m->mountpoint;
    fs->start_nsec = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    fs->start_generation = (uint32_t)fs->start_nsec ^ (uint32_t)getpid() << 16;
    fs->is_lone = sources_is_lone(fs->sources);
    fs->thread_count = m->options.threads ? m->options.threads : loop_default_threads();
    fs->spin_nsec =
        m->options.spin_usec < 0 ? loop_default_spin_nsec() : m->options.spin_usec * INT64_C(1000);
    fill_owner(m);
    zr_buffer_set_limit(IDLE_BUFFER_NBYTES);
}

static int make_parts(struct fs *fs)
{
    fs->cache = cache_new(fs->options->cache_nbytes, node_cache_decode, fs);
    fs->minted = minted_new(MINTED_MAX_COUNT, MINTED_MAX_NBYTES);
    fs->counters = counters_new();
    fs->damage = report_damage_new();
    fs->janitor = janitor_new(fs);
    fs->commands = commands_new();
    if (fs->cache && fs->minted && fs->counters && fs->damage && fs->janitor && fs->commands)
        return 0;
    report(LOG_ERR, "out of memory");
    return -1;
}

/* ---------------------------------------------------------------- mount */

/* Commas and backslashes separate and escape in option lists. */
static void escape(const char *text, char *to, size_t capacity)
{
    size_t used = 0;
    for (; *text && used + 2 < capacity; text++) {
        if (*text == ',' || *text == '\\')
            to[used++] = '\\';
        to[used++] = *text;
    }
    to[used] = '\0';
}

static struct fuse_session *new_session(struct mount *m)
{
    char source[PATH_MAX * 2 + 1];
    char list[PATH_MAX * 2 + OPTIONS_KERNEL_MAX + 128];
    escape(sources_root(m->fs.sources)->path, source, sizeof source);
    snprintf(list, sizeof list, "%s,default_permissions,subtype=zrecordfs,fsname=%s%s%s%s",
             m->options.writable_control || sources_are_writable(m->fs.sources) ? "rw" : "ro",
             source, m->options.allow_other ? ",allow_other" : "", m->options.kernel[0] ? "," : "",
             m->options.kernel);
    char *argv[] = {"zrecordfs", "-o", list, m->options.debug ? "-d" : NULL, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(m->options.debug ? 4 : 3, argv);
    struct fuse_session *session =
        fuse_session_new(&args, &ops_handlers, sizeof ops_handlers, &m->fs);
    fuse_opt_free_args(&args);
    return session;
}

static int mount_session(struct mount *m)
{
    fuse_set_log_func(keep_fuse_log);
    m->fs.session = m->session = new_session(m);
    if (!m->session) {
        report(LOG_ERR, "cannot start FUSE: %s", last_fuse_message);
        return -1;
    }
    if (fuse_session_mount(m->session, m->mountpoint) != 0) {
        report(LOG_ERR, "cannot mount on %s: %s; " MOUNTPOINT_EXPORT_HINT, m->mountpoint,
               last_fuse_message[0] ? last_fuse_message : "fusermount3 failed");
        fuse_session_destroy(m->session);
        m->session = NULL;
        return -1;
    }
    fuse_set_log_func(m->options.debug ? NULL : pass_fuse_log);
    return 0;
}

static int prepare_mountpoint(struct mount *m)
{
    char why[WHY_NBYTES];
    if (mountpoint_prepare(m->options.mountpoint, m->options.allow_other, &m->mountpoint, why,
                           sizeof why) == 0)
        return 0;
    report(LOG_ERR, "%s", why);
    return -1;
}

/* ---------------------------------------------------------------- background */

/* The command: waits for the daemon's word.  Returns the exit code. */
static int await_daemon(struct mount *m, int fd)
{
    char ok = 0;
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int ready;
    do
        ready = poll(&poll_fd, 1, ANSWER_TIMEOUT_MSEC);
    while (ready < 0 && errno == EINTR);
    if (ready > 0 && read(fd, &ok, 1) == 1)
        return ok == 'y' ? 0 : 1; /* the daemon has said why not */
    report(LOG_ERR,
           ready == 0 ? "the mount on %s does not answer" : "the daemon for %s ended early",
           m->mountpoint);
    fuse_session_unmount(m->session);
    return 1;
}

/* Forks; the command never returns from here, the daemon does. */
static int go_background(struct mount *m)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        report(LOG_ERR, "pipe: %s", strerror(errno));
        return -1;
    }
    pid_t pid = fork();
    if (pid < 0) {
        report(LOG_ERR, "fork: %s", strerror(errno));
        return -1;
    }
    if (pid > 0) {
        close(pipe_fds[1]);
        _exit(await_daemon(m, pipe_fds[0])); /* the daemon's locks and mount stay */
    }
    close(pipe_fds[0]);
    m->answer_fd = pipe_fds[1];
    (void)setsid();
    return chdir("/");
}

/* Lets go of the caller's terminal and pipes. */
static void drop_output(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return;
    for (int fd = 0; fd <= 2; fd++)
        dup2(null, fd);
    close(null);
}

/* A lock or pipe that the caller's shell holds on some descriptor must not live
 * as long as the mount does. */
static void drop_inherited(void)
{
    (void)close_range(STDERR_FILENO + 1, UINT_MAX, 0);
}

static void answer(struct mount *m, bool ok)
{
    if (m->answer_fd < 0)
        return;
    if (ok) {
        drop_output();
        report_to_syslog();
    }
    (void)!write(m->answer_fd, ok ? "y" : "n", 1);
    close(m->answer_fd);
    m->answer_fd = -1;
}

/* ---------------------------------------------------------------- serve */

static void end_main(void *ctx)
{
    (void)ctx;
    kill(getpid(), SIGTERM); /* main waits for it */
}

static void end_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
}

/* The largest file, as far as a few records tell. */
static void sample_store(void *ctx, struct source *source, const char *relative, const char *why)
{
    (void)relative;
    uint64_t *largest = ctx, nbytes;
    if (why || source->kind != SOURCE_STORE)
        return;
    const struct zr_info *info = &source->info;
    uint64_t count = info->geometry == ZR_DENSE ? 1 : SIZE_SAMPLES;
    uint64_t stride = info->length / count + 1;
    for (uint64_t id = 0; id < info->length; id += stride)
        if (zr_record_npy_nbytes(source->reader, id, &nbytes, NULL) == ZR_OK && nbytes > *largest)
            *largest = nbytes;
}

static uint64_t sampled_file_nbytes(struct sources *sources)
{
    uint64_t largest = 0;
    sample_store(&largest, sources_root(sources), "", NULL);
    sources_walk(sources, sources_root(sources), sample_store, &largest);
    return largest;
}

static struct warm *make_warm(struct mount *m)
{
    const struct warm_options options = {
        .session = m->session,
        .cache = m->fs.cache,
        .counters = m->fs.counters,
        .cache_nbytes = m->options.cache_nbytes,
        .ahead = m->options.prefetch,
        .thread_count = m->options.threads == 1 ? 1 : zr_thread_count(),
        .views = {.at = records_warm_at, .count = records_warm_count, .ctx = &m->fs},
        .get = records_warm_get,
    };
    return warm_new(&options);
}

static int start_serving(struct mount *m)
{
    const struct transport_options options = {
        .kind = m->options.transport,
        .thread_count = m->fs.thread_count,
        .spin_nsec = m->fs.spin_nsec,
        .counters = m->fs.counters,
        .ended = end_main,
    };
    m->fs.warm = make_warm(m);
    if (!m->fs.warm) {
        report(LOG_ERR, "out of memory");
        return -1;
    }
    /* Those that answer may be bound to a CPU each and of the idle class, and what they start
     * would be too. */
    zr_start_threads();
    warm_start(m->fs.warm);
    janitor_start(m->fs.janitor);
    if (transport_start(&m->transport, m->session, &options) != 0)
        return -1;
    m->fs.transport = transport_running(m->transport);
    int failure = mountpoint_await(m->mountpoint);
    if (failure) {
        report(LOG_ERR, "the mount on %s does not answer: %s", m->mountpoint, strerror(failure));
        return -1;
    }
    mountpoint_set_read_ahead(m->mountpoint, sampled_file_nbytes(m->fs.sources));
    return 0;
}

static uint64_t request_count(void *ctx)
{
    struct counters_sum sum;
    uint64_t count = 0;
    counters_collect(ctx, &sum);
    for (size_t op = 0; op < COUNTERS_OPCODES; op++)
        if (op != FUSE_FORGET && op != FUSE_BATCH_FORGET) /* the kernel's own tidying */
            count += sum.requests[op];
    return count;
}

/* From mounted to unmounted; returns the exit code. */
static int serve(struct mount *m)
{
    if (start_serving(m) != 0) {
        answer(m, false);
        return 1;
    }
    answer(m, true);
    report(LOG_INFO, "%s is mounted on %s", sources_root(m->fs.sources)->path, m->mountpoint);
    service_notify("READY=1");
    sigset_t set;
    end_signals(&set);
    const struct service_watch watch = {
        .mountpoint = m->mountpoint,
        .timeout_sec = m->options.timeout_sec,
        .request_count = request_count,
        .ctx = m->fs.counters,
    };
    service_await_end(&set, &watch);
    service_notify("STOPPING=1");
    return 0;
}

static void end_threads(struct mount *m)
{
    struct deadline *deadline = deadline_start(END_TIMEOUT_SEC, "ending the mount");
    warm_stop(m->fs.warm);
    janitor_stop(m->fs.janitor);
    transport_stop(m->transport);
    if (m->session) {
        fuse_session_unmount(m->session);
        fuse_session_destroy(m->session);
    }
    deadline_stop(deadline);
}

static void close_all(struct mount *m)
{
    end_threads(m);
    janitor_free(m->fs.janitor);
    warm_free(m->fs.warm);
    commands_free(m->fs.commands);
    cache_free(m->fs.cache);
    minted_free(m->fs.minted);
    counters_free(m->fs.counters);
    report_damage_free(m->fs.damage);
    sources_free(m->fs.sources);
    zr_buffer_trim(0);
    free(m->source);
    free(m->mountpoint);
}

/* Everything the user should hear of before the command returns. */
static int set_up(struct mount *m)
{
    char *mountpoint = realpath(m->options.mountpoint, NULL); /* all about it is checked later */
    int failure = open_source(m, mountpoint ? mountpoint : "/nonexistent");
    free(mountpoint);
    if (failure || prepare_mountpoint(m) != 0)
        return -1;
    fill_fs(m);
    if (make_parts(&m->fs) != 0 || mount_session(m) != 0)
        return -1;
    return m->options.foreground ? 0 : go_background(m);
}

static void set_signals(void)
{
    sigset_t set;
    end_signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL); /* serve() waits for them */
    signal(SIGPIPE, SIG_IGN);
}

int main(int argc, char **argv)
{
    struct mount m = {.answer_fd = -1};
    switch (options_parse(&m.options, argc, argv)) {
    case OPTIONS_DONE:
        return 0;
    case OPTIONS_USAGE:
        return 2;
    case OPTIONS_RUN:
        break;
    }
    set_signals();
    if (!m.options.foreground)
        drop_inherited();
    int code = set_up(&m) == 0 ? serve(&m) : 1;
    close_all(&m);
    return code;
}
