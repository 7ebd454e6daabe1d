/* SPDX-License-Identifier: MIT
 *
 * Deadline: what hangs ends with the process, and what is done in time does not.
 */
#include <check.h>

#include "deadline.h"

#include <stdlib.h>
#include <unistd.h>

START_TEST(what_hangs_ends_with_code_1)
{
    deadline_start(0, "a test");
    for (;;)
        pause();
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
    Suite *suite = suite_create("fs_deadline");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 60);
    tcase_add_exit_test(tests, what_hangs_ends_with_code_1, 1);
    tcase_add_test(tests, what_is_done_in_time_goes_on);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
