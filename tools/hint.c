/* SPDX-License-Identifier: MIT
 *
 * What to do with something that is not a store: said after the reason, when it is
 * another thing that zrecord knows.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools.h"

#define DEPTH_MAX 4 /* as deep as trees of streams usually are */
#define LOOKED_AT_MAX 4096

static bool ends_with(const char *path, const char *suffix)
{
    size_t length = strlen(path), n = strlen(suffix);

    return length > n && strcmp(path + length - n, suffix) == 0;
}

/* The path of a store below a folder, to be freed. */
static char *find_store(const char *folder, int depth, int *looked_at)
{
    DIR *dir = opendir(folder);
    char *found = NULL, *path;

    if (!dir)
        return NULL;
    for (const struct dirent *entry; !found && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || ++*looked_at > LOOKED_AT_MAX ||
            (entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN))
            continue;
        if (asprintf(&path, "%s/%s", folder, entry->d_name) < 0)
            break;
        if (is_store(path)) {
            found = path;
            continue;
        }
        if (depth < DEPTH_MAX)
            found = find_store(path, depth + 1, looked_at);
        free(path);
    }
    closedir(dir);
    return found;
}

static void hint_folder(const char *path)
{
    int looked_at = 0;
    char *store = find_store(path, 0, &looked_at);

    if (store)
        diag("%s: holds stores, like %s (zrecord mount shows them all)", path, store);
    free(store);
}

void hint_no_store(const char *path)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return;
    if (S_ISDIR(st.st_mode))
        hint_folder(path);
    else if (zr_archive_is(path))
        diag("%s: is a memmap archive (see zrecord archive-info, verify and unpack)", path);
    else if (ends_with(path, ".npy") || ends_with(path, ".npz"))
        diag("%s: zrecord import makes a store of it", path);
}
