/* SPDX-License-Identifier: MIT
 *
 * The `zrecord` program: finds the subcommand and runs it.  What each does is
 * in cmd_*.c, one file a subcommand.
 *
 * Exit status: 0 fine, 1 failed, 2 wrong usage.
 */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tools.h"

static const struct command *const commands[] = {
    &cmd_import, &cmd_export, &cmd_info,         &cmd_ls,
    &cmd_cat,    &cmd_verify, &cmd_train_dict,   &cmd_recode,
    &cmd_bench,  &cmd_mount,  &cmd_umount,       &cmd_ctl,
    &cmd_pack,   &cmd_unpack, &cmd_archive_info, &cmd_refresh_checksums,
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_usage(FILE *out)
{
    fputs("Usage: zrecord COMMAND [OPTION]... ARGUMENT...\n\n", out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-17s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n  --help      this text; after a command, its options\n"
          "  --version   versions of this program and its libraries\n"
          "\nExit status: 0 fine, 1 failed, 2 wrong usage.\n",
          out);
}

static void print_version(void)
{
    printf("zrecord %s\nlibzstd %s\njansson %s\n", zr_version(), zr_zstd_version(),
           JANSSON_VERSION);
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

/* Output that did not reach its file is a failure too. */
static int flush_stdout(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fail_errno("standard output");
    return status == EXIT_FINE ? EXIT_FAILED : status;
}

static int run_command(const struct command *command, int argc, char **argv)
{
    char title[64];

    snprintf(title, sizeof title, "zrecord: %s", command->name);
    argv[0] = title; /* getopt_long's messages begin with it */
    current_command = command;
    int status = flush_stdout(command->run(argc, argv));
    if (status != EXIT_FINE)
        signals_die_if_pending();
    return status;
}

/* `zrecord help COMMAND` is `zrecord COMMAND --help`. */
static int run_help(char *name)
{
    static char option[] = "--help";
    char *argv[] = {name, option, NULL};
    const struct command *command = find_command(name);

    if (command)
        return run_command(command, 2, argv);
    fprintf(stderr, "zrecord: help: %s: no such command\n", name);
    print_usage(stderr);
    return EXIT_USAGE;
}

static int run_general(const char *word)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_usage(stdout);
        return flush_stdout(EXIT_FINE);
    }
    if (strcmp(word, "--version") == 0) {
        print_version();
        return flush_stdout(EXIT_FINE);
    }
    fprintf(stderr, "zrecord: %s: no such %s\n", word, word[0] == '-' ? "option" : "command");
    print_usage(stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file too large is an error that cleans up, not a death */
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (argc == 3 && strcmp(argv[1], "help") == 0)
        return run_help(argv[2]);
    const struct command *command = find_command(argv[1]);
    return command ? run_command(command, argc - 1, argv + 1) : run_general(argv[1]);
}
