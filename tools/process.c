/* SPDX-License-Identifier: MIT
 *
 * Runs another program (zrecordfs, fusermount3) to its end.
 */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools.h"

static volatile sig_atomic_t child_pid;

static void pass_on(int number)
{
    kill(child_pid, number);
}

static void catch_signals(const sigset_t *numbers)
{
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};

    for (int number = 1; number < NSIG; number++)
        if (sigismember(numbers, number) == 1)
            sigaction(number, &action, NULL);
}

/* Starts the program with the given signal mask. */
static int spawn(const char *program, char **argv, const sigset_t *mask)
{
    posix_spawnattr_t attributes;
    pid_t pid;

    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, mask);
    int reason = posix_spawnp(&pid, program, NULL, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    if (reason == 0)
        child_pid = pid;
    return reason;
}

int run_program(const char *program, char **argv)
{
    sigset_t passed_on, before;
    int status;

    sigemptyset(&passed_on);
    sigaddset(&passed_on, SIGTERM);
    sigaddset(&passed_on, SIGINT);
    sigaddset(&passed_on, SIGHUP);
    /* A signal that comes before there is a child waits until there is one. */
    sigprocmask(SIG_BLOCK, &passed_on, &before);
    int reason = spawn(program, argv, &before);
    if (reason == 0)
        catch_signals(&passed_on);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (reason != 0) {
        errno = reason;
        return -1;
    }
    while (waitpid(child_pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
