/* SPDX-License-Identifier: MIT
 *
 * From selections to ranges of warm.c.
 */
#include "prefetch.h"

#include "ops.h"
#include "selection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_RANGES = 8,      /* more parts become one list of ids, */
    MAX_LISTED = 1 << 20 /* of at most so many */
};

static bool push_ranges(struct fs *fs, uint64_t view, const struct selection *s)
{
    bool fits = true;
    for (size_t i = 0; i < s->span_count && fits; i++) {
        const struct selection_span *span = &s->spans[i];
        const struct warm_range range = {
            .view = view, .start = span->first, .step = span->step, .count = span->count};
        fits = span->count == 0 || warm_prefetch(fs->warm, &range);
    }
    return fits;
}

static int push_list(struct fs *fs, uint64_t view, const struct selection *s)
{
    if (s->count > MAX_LISTED)
        return E2BIG;
    uint64_t *ids = malloc(s->count * sizeof *ids + 1);
    if (!ids)
        return ENOMEM;
    selection_ids(s, 0, s->count, ids);
    const struct warm_range range = {.view = view, .positions = ids, .count = s->count};
    bool fits = s->count == 0 || warm_prefetch(fs->warm, &range);
    free(ids);
    return fits ? 0 : EAGAIN;
}

int prefetch_start(struct fs *fs, struct source *source, const char *text)
{
    struct selection *s;
    uint64_t view = node_of(fs, &node_store, source, TREE_PLAIN, TREE_FOLDER).ino;
    int failure = selection_parse(text, strlen(text), source->info.length, &s);
    if (failure)
        return failure;
    if (s->span_count > MAX_RANGES)
        failure = push_list(fs, view, s);
    else
        failure = push_ranges(fs, view, s) ? 0 : EAGAIN;
    if (!failure)
        counters_add(fs->counters, EVENT_PREFETCHES, s->count);
    free(s);
    return failure;
}

int prefetch_describe(struct source *source, const char *selection, char **answer, size_t *nbytes)
{
    struct selection *s;
    int failure = selection_parse(selection, strlen(selection), source->info.length, &s);
    if (failure)
        return failure == ENOMEM ? ENOMEM : ENOENT;
    int n = asprintf(answer,
                     "{\"prefetch\": \"%s\", \"records\": %llu, \"state\": \"started\", "
                     "\"progress\": \".control: pending\"}\n",
                     selection, (unsigned long long)s->count);
    free(s);
    if (n < 0)
        return ENOMEM;
    *nbytes = (size_t)n;
    return 0;
}
