/* SPDX-License-Identifier: MIT
 *
 * Debian's libzstd.a is not fully position independent: its dictionary trainers
 * (which print at a verbosity nobody sets) reach for libc's stderr as only a
 * program can.  Linked with --wrap=stderr they find this hidden copy instead, and
 * the archive fits into a shared object.
 */
#include <stdio.h>

extern FILE *__real_stderr;
__attribute__((visibility("hidden"))) FILE *__wrap_stderr;

__attribute__((constructor)) static void copy_stderr(void)
{
    __wrap_stderr = __real_stderr;
}
