/* SPDX-License-Identifier: MIT
 *
 * The table of commands, and how a line finds its row.
 */
#include "commands.h"

#include "ops.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NBYTES = 64 << 10 }; /* of one command */

struct commands {
    pthread_mutex_t lock; /* everything below */
    bool has_failed;
    struct commands_failure failure;
};

struct commands *commands_new(void)
{
    struct commands *c = calloc(1, sizeof *c);
    if (c)
        pthread_mutex_init(&c->lock, NULL);
    return c;
}

void commands_free(struct commands *c)
{
    if (!c)
        return;
    pthread_mutex_destroy(&c->lock);
    free(c);
}

bool commands_last_failure(struct commands *c, struct commands_failure *failure)
{
    pthread_mutex_lock(&c->lock);
    bool has_failed = c->has_failed;
    *failure = c->failure;
    pthread_mutex_unlock(&c->lock);
    return has_failed;
}

/* ---------------------------------------------------------------- the commands */

/* One command being run. */
struct call {
    struct fs *fs;
    struct source *source;
    const char *argument;
    char *answer;
};

static int say(struct call *c, int failure, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int say(struct call *c, int failure, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->answer, COMMANDS_WORDS_MAX, format, args);
    va_end(args);
    return failure;
}

static int explain(struct call *c, int failure)
{
    switch (failure) {
    case 0:
        return say(c, 0, "started");
    case EINVAL:
        return say(c, EINVAL, "not a selection of records (like 0,5,2 or 0:256 or 0:1000:10)");
    case ERANGE:
        return say(c, EINVAL, "records out of range: the store has %llu",
                   (unsigned long long)c->source->info.length);
    case E2BIG:
        return say(c, EINVAL, "too many records in a list of so many parts");
    case EAGAIN:
        return say(c, EAGAIN, "too much is queued already, or pushing is off");
    default:
        return say(c, failure, "%s", strerror(failure));
    }
}

static bool is_store(const struct call *c)
{
    return c->source->kind == SOURCE_STORE;
}

static int no_store(struct call *c)
{
    return say(c, EINVAL, "this folder is no store: ask in the folder of one");
}

static int run_prefetch(struct call *c)
{
    return is_store(c) ? explain(c, prefetch_start(c->fs, c->source, c->argument)) : no_store(c);
}

static int run_drop(struct call *c)
{
    return is_store(c) ? explain(c, janitor_drop(c->fs->janitor, c->source, c->argument))
                       : no_store(c);
}

static int run_stats(struct call *c)
{
    if (strcmp(c->argument, "reset") != 0)
        return say(c, EINVAL, "stats knows only: stats reset");
    counters_reset(c->fs->counters);
    return say(c, 0, "counters are 0");
}

static int run_log(struct call *c)
{
    if (!report_set_level(c->argument))
        return say(c, EINVAL, "log takes error, warning, info or debug");
    return say(c, 0, "logging %s", c->argument);
}

static const struct command {
    const char *word;
    int (*run)(struct call *c);
    struct commands_entry entry;
} COMMANDS[] = {
    {"prefetch",
     run_prefetch,
     {"prefetch SELECTION", "decode these records into the page cache", false}},
    {"drop",
     run_drop,
     {"drop SELECTION", "forget these records: decoded ones and the kernel's pages", true}},
    {"stats", run_stats, {"stats reset", "counters and latencies start from 0", true}},
    {"log", run_log, {"log LEVEL", "log error, warning, info or debug and above", true}},
};
enum { COMMAND_COUNT = sizeof COMMANDS / sizeof COMMANDS[0] };

const struct commands_entry *commands_list(size_t index)
{
    return index < COMMAND_COUNT ? &COMMANDS[index].entry : NULL;
}

/* ---------------------------------------------------------------- running */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static const char *skip_blanks(const char *text)
{
    while (is_blank(*text))
        text++;
    return text;
}

/* The row for a line, and where its argument starts. */
static const struct command *find(const char *line, const char **argument)
{
    size_t nbytes = strcspn(line, " \t");
    *argument = skip_blanks(line + nbytes);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strlen(COMMANDS[i].word) == nbytes && memcmp(COMMANDS[i].word, line, nbytes) == 0)
            return &COMMANDS[i];
    return NULL;
}

static int run_line(struct call *c, const char *line, bool is_owner)
{
    const struct command *command = find(line, &c->argument);
    if (!command)
        return say(c, EINVAL, "no such command; there are prefetch, drop, stats and log");
    if (!*c->argument)
        return say(c, EINVAL, "usage: %s", command->entry.usage);
    if (command->entry.owner_only && !is_owner)
        return say(c, EPERM, "only root and the owner of the mount may");
    return command->run(c);
}

/* A copy without blanks at its ends; NULL and *failure for what cannot be a command. */
static char *trimmed(const char *text, size_t nbytes, int *failure)
{
    while (nbytes && is_blank(text[nbytes - 1]))
        nbytes--;
    *failure = EINVAL;
    if (nbytes > MAX_NBYTES || memchr(text, '\0', nbytes))
        return NULL;
    *failure = ENOMEM;
    return strndup(text, nbytes);
}

static void remember(struct commands *c, const char *text, size_t nbytes, const char *message)
{
    pthread_mutex_lock(&c->lock);
    c->has_failed = true;
    snprintf(c->failure.command, sizeof c->failure.command, "%.*s",
             (int)(nbytes < MAX_NBYTES ? nbytes : MAX_NBYTES), text);
    for (char *p = c->failure.command; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = '?';
    snprintf(c->failure.message, sizeof c->failure.message, "%s", message);
    pthread_mutex_unlock(&c->lock);
}

int commands_run(struct fs *fs, struct source *source, bool is_owner, const char *text,
                 size_t nbytes, char answer[COMMANDS_WORDS_MAX])
{
    int failure;
    struct call call = {.fs = fs, .source = source, .answer = answer};
    char *line = trimmed(text, nbytes, &failure);
    if (line)
        failure = run_line(&call, skip_blanks(line), is_owner);
    else
        say(&call, 0, failure == EINVAL ? "not a command" : "out of memory");
    if (failure)
        remember(fs->commands, text, nbytes, answer);
    free(line);
    return failure;
}

static bool is_empty(const char *text, size_t nbytes)
{
    while (nbytes && is_blank(text[nbytes - 1]))
        nbytes--;
    return nbytes == 0;
}

int commands_run_lines(struct fs *fs, struct source *source, const char *text, size_t nbytes)
{
    char answer[COMMANDS_WORDS_MAX];
    int failure = 0;
    while (nbytes && !failure) {
        const char *end = memchr(text, '\n', nbytes);
        size_t line_nbytes = end ? (size_t)(end - text) : nbytes;
        if (!is_empty(text, line_nbytes))
            failure = commands_run(fs, source, true, text, line_nbytes, answer);
        size_t step = line_nbytes + (end != NULL);
        text += step;
        nbytes -= step;
    }
    return failure;
}
