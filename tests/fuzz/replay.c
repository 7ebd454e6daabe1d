/* SPDX-License-Identifier: MIT
 *
 * Runs a fuzz target on the files named, and on every file in the folders named,
 * without a fuzzer.  Fails when that is none at all: a corpus that went missing
 * must not pass.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t nbytes);

static unsigned run_count;

static void fail(const char *path)
{
    fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
    exit(1);
}

static void run_file(const char *path, size_t nbytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = malloc(nbytes + 1);
    if (!f || !bytes || fread(bytes, 1, nbytes, f) != nbytes)
        fail(path);
    fclose(f);
    LLVMFuzzerTestOneInput(bytes, nbytes);
    free(bytes);
    run_count++;
}

static void run_path(const char *path);

static void run_dir(const char *path)
{
    struct dirent **names;
    int count = scandir(path, &names, NULL, alphasort);
    if (count < 0)
        fail(path);
    for (int i = 0; i < count; i++) {
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.')
            run_path(inner);
        free(names[i]);
    }
    free(names);
}

static void run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st))
        fail(path);
    if (S_ISDIR(st.st_mode))
        run_dir(path);
    else
        run_file(path, (size_t)st.st_size);
}

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/');
    for (int i = 1; i < argc; i++)
        run_path(argv[i]);
    printf("%s: %u inputs ran\n", name ? name + 1 : argv[0], run_count);
    return run_count ? 0 : 1;
}
