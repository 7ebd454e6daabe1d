/* SPDX-License-Identifier: MIT
 *
 * The names of members that are to be written: each in its clean form, there once,
 * and no file the folder of others, so that what was written can be unpacked.
 */
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "archive.h"

struct naming {
    const char *path;
    const struct zr_archive_source *sources;
    size_t count;
    uint32_t *table; /* open addressing: source + 1, 0 free */
    size_t mask;
};

static int check_name(const struct naming *n, const struct zr_archive_source *s,
                      struct zr_error *err)
{
    size_t nbytes = strlen(s->name), clean_nbytes;
    if (nbytes > ZRI_ZIP_NAME_MAX)
        return zri_fail(err, ZR_E_INVALID, "%s: a member's name has %zu bytes, a zip takes %d",
                        n->path, nbytes, ZRI_ZIP_NAME_MAX);
    struct zri_zip_entry e = {
        .name = (const uint8_t *)s->name, .name_nbytes = (uint16_t)nbytes, .flags = ZRI_ZIP_UTF8};
    char *clean = malloc(3 * nbytes + 1);
    const char *why = clean ? zri_zip_name(&e, clean, &clean_nbytes) : zri_out_of_memory;
    if (!why && (clean_nbytes != nbytes || (nbytes && s->name[nbytes - 1] == '/')))
        why = "its name is not in its clean form";
    free(clean);
    if (!why)
        return ZR_OK;
    return zri_fail(err, why == zri_out_of_memory ? ZR_E_NOMEM : ZR_E_INVALID, "%s: member %s: %s",
                    n->path, s->name, why);
}

/* Where the name is in the table, or could be. */
static uint32_t *find_slot(const struct naming *n, const char *name, size_t nbytes)
{
    size_t at = XXH3_64bits(name, nbytes) & n->mask;
    for (; n->table[at]; at = (at + 1) & n->mask) {
        const char *other = n->sources[n->table[at] - 1].name;
        if (!strncmp(other, name, nbytes) && !other[nbytes])
            break;
    }
    return &n->table[at];
}

/* No member is a folder of others.  Most lie in the folder of the one before. */
static int check_folders(const struct naming *n, struct zr_error *err)
{
    const char *before = "";
    size_t before_nbytes = 0;
    for (size_t i = 0; i < n->count; i++) {
        const char *name = n->sources[i].name, *slash = strrchr(name, '/');
        size_t nbytes = slash ? (size_t)(slash - name) : 0;
        if (nbytes == before_nbytes && !memcmp(name, before, nbytes))
            continue;
        before = name;
        before_nbytes = nbytes;
        for (slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
            uint32_t found = *find_slot(n, name, (size_t)(slash - name));
            if (found)
                return zri_fail(err, ZR_E_INVALID, "%s: member %s lies below another one, %s",
                                n->path, name, n->sources[found - 1].name);
        }
    }
    return ZR_OK;
}

static int add_name(const struct naming *n, size_t i, struct zr_error *err)
{
    const char *name = n->sources[i].name;
    int rc = check_name(n, &n->sources[i], err);
    if (rc)
        return rc;
    uint32_t *slot = find_slot(n, name, strlen(name));
    if (*slot)
        return zri_fail(err, ZR_E_INVALID, "%s: member %s is given twice", n->path, name);
    *slot = (uint32_t)i + 1;
    return ZR_OK;
}

int zri_archive_check_names(const char *path, const struct zr_archive_source *sources, size_t count,
                            struct zr_error *err)
{
    size_t slots = 16;
    while (slots < count * 2)
        slots *= 2;
    struct naming n = {path, sources, count, calloc(slots, sizeof *n.table), slots - 1};
    if (!n.table)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", path);
    int rc = ZR_OK;
    for (size_t i = 0; !rc && i < count; i++)
        rc = add_name(&n, i, err);
    if (!rc)
        rc = check_folders(&n, err);
    free(n.table);
    return rc;
}
