/* SPDX-License-Identifier: MIT
 *
 * Deadline: what hangs ends with the process, and what is done in time does not.
 */
#include "deadline.h"

#include "support.h"

START_TEST(what_hangs_ends_with_code_1)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        deadline_start(0, "a test");
        for (;;)
            pause();
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}
END_TEST

START_TEST(what_is_done_in_time_goes_on)
{
    for (int i = 0; i < 50; i++)
        deadline_stop(deadline_start(60, "a test"));
    deadline_stop(NULL);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        what_hangs_ends_with_code_1,
        what_is_done_in_time_goes_on,
    };
    return run_tests("fs_deadline", tests, COUNT(tests), 60);
}
