/* SPDX-License-Identifier: MIT
 *
 * Whether the stacks of a tree are complete.  A stack does not say how many members
 * it has: they are the folders 0, 1, ... that are there.  So one whose meta.json is
 * missing would end the stack early, without a word.
 */
#include <stdio.h>
#include <stdlib.h>

#include "archive_meta.h"

#define META "meta.json"

/* The bytes of a number at p, as stacks write it, that names a folder; or 0. */
static size_t folder_number(const char *p)
{
    size_t n = strspn(p, "0123456789");
    return n < 20 && p[n] == '/' && (n == 1 || *p != '0') ? n : 0;
}

/* What is known of the meta.json in a folder, whose name ends with a slash or is empty. */
enum place { MISSING, UNUSED, USED, OF_STACK };

static enum place look(const struct zr_archive *a, const uint8_t *used, const char *folder,
                       size_t nbytes, char *buf)
{
    memcpy(buf, folder, nbytes);
    memcpy(buf + nbytes, META, sizeof META);
    size_t index = zri_archive_find(a, buf, nbytes + sizeof META - 1);
    if (index == SIZE_MAX)
        return MISSING;
    return !used[index] ? UNUSED : used[index] == ZRI_USED_BY_STACK ? OF_STACK : USED;
}

/* Whether the folder is a member that its stack lacks: the next one, but without a
 * meta.json, or one behind a gap.  name + at is its number. */
static bool is_lost(const struct zr_archive *a, const uint8_t *used, const char *name, size_t at,
                    size_t digits, char *buf)
{
    if (look(a, used, name, at, buf) != OF_STACK)
        return false;
    enum place own = look(a, used, name, at + digits + 1, buf);
    if (own != MISSING)
        return own == UNUSED;
    unsigned long long number = strtoull(name + at, NULL, 10);
    if (number == 0)
        return true;
    char before[24];
    int n = snprintf(before, sizeof before, "%llu/", number - 1);
    memcpy(buf, name, at);
    memcpy(buf + at, before, (size_t)n);
    memcpy(buf + at + n, META, sizeof META);
    size_t index = zri_archive_find(a, buf, at + (size_t)n + sizeof META - 1);
    return index != SIZE_MAX && used[index];
}

/* Of a member that no level has. */
static int check_member(const struct zr_archive *a, const uint8_t *used, size_t index, char *buf,
                        struct zr_error *err)
{
    const char *name = a->members[index].name, *slash;
    for (const char *p = name; (slash = strchr(p, '/')); p = slash + 1) {
        size_t digits = folder_number(p), at = (size_t)(p - name);
        if (digits && is_lost(a, used, name, at, digits, buf))
            return zri_fail(err, ZR_E_FORMAT,
                            "%s: member %.*s of a stack has no meta.json, or the one before it",
                            a->path, (int)(at + digits), name);
    }
    return ZR_OK;
}

int zri_archive_check_stacks(const struct zr_archive *a, const uint8_t *used, struct zr_error *err)
{
    size_t longest = 0;
    for (size_t i = 0; i < a->count; i++)
        if (!used[i] && a->members[i].name_nbytes > longest)
            longest = a->members[i].name_nbytes;
    char *buf = malloc(longest + 32);
    if (!buf)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", a->path);
    int rc = ZR_OK;
    for (size_t i = 0; !rc && i < a->count; i++)
        if (!used[i])
            rc = check_member(a, used, i, buf, err);
    free(buf);
    return rc;
}
