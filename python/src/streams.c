/* SPDX-License-Identifier: MIT
 *
 * Debian's libzstd.a and libbz2.a are not fully position independent: parts that
 * nobody calls here (dictionary trainers that print at a verbosity nobody sets,
 * bzip2's functions on files) reach for libc's streams as only a program can.
 * Linked with --wrap they find these hidden copies instead, and the archives fit
 * into a shared object.
 */
#include <stdio.h>

extern FILE *__real_stdin, *__real_stdout, *__real_stderr;
__attribute__((visibility("hidden"))) FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;

__attribute__((constructor)) static void copy_streams(void)
{
    __wrap_stdin = __real_stdin;
    __wrap_stdout = __real_stdout;
    __wrap_stderr = __real_stderr;
}
