/* SPDX-License-Identifier: MIT
 *
 * Selections of records as typed by the user: ids and first:stop[:step] ranges,
 * separated by commas.  Kept as spans, so that "0:1000000000" costs nothing.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"

#define OPEN_END UINT64_MAX

/* An empty field takes its default. */
static bool parse_field(const char *text, uint64_t otherwise, uint64_t *value)
{
    if (*text == '\0') {
        *value = otherwise;
        return true;
    }
    return parse_u64(text, value) && *value < OPEN_END;
}

static bool parse_range(char *text, char *colon, struct span *span)
{
    char *second = strchr(colon + 1, ':');

    *colon = '\0';
    if (second)
        *second = '\0';
    return parse_field(text, 0, &span->first) && parse_field(colon + 1, OPEN_END, &span->stop) &&
           parse_field(second ? second + 1 : "", 1, &span->step) && span->step > 0 &&
           span->first <= span->stop;
}

static bool parse_span(char *text, struct span *span)
{
    char *colon = strchr(text, ':');

    if (colon)
        return parse_range(text, colon, span);
    if (!parse_u64(text, &span->first) || span->first == OPEN_END)
        return false;
    span->stop = span->first + 1;
    span->step = 1;
    span->is_single = true;
    return true;
}

static size_t count_commas(const char *text)
{
    size_t count = 0;

    for (; *text; text++)
        count += *text == ',';
    return count;
}

/* Consumes `text`. */
static bool parse_spans(struct selection *s, char *text)
{
    for (;;) {
        char *comma = strchr(text, ',');
        if (comma)
            *comma = '\0';
        if (!parse_span(text, &s->spans[s->span_count]))
            return false;
        s->span_count++;
        if (!comma)
            return true;
        text = comma + 1;
    }
}

int selection_parse(struct selection *s, const char *text)
{
    *s = (struct selection){0};
    char *copy = strdup(text ? text : ":");
    if (copy)
        s->spans = calloc(count_commas(copy) + 1, sizeof *s->spans);
    if (!copy || !s->spans) {
        free(copy);
        return fail_nomem();
    }
    bool good = parse_spans(s, copy);
    free(copy);
    if (good)
        return 0;
    selection_release(s);
    return usage_error("'%s' is not a selection of records (like 0,5,2 or 0:256 or 0:1000:10)",
                       text);
}

static uint64_t span_count(const struct span *span)
{
    uint64_t width = span->stop - span->first;

    return width / span->step + (width % span->step != 0);
}

int selection_resolve(struct selection *s, const char *store, uint64_t length)
{
    for (size_t i = 0; i < s->span_count; i++) {
        struct span *span = &s->spans[i];
        if (span->is_single && span->first >= length) {
            diag("%s: record %" PRIu64 " is out of range: the store has %" PRIu64, store,
                 span->first, length);
            return EXIT_FAILED;
        }
        span->stop = span->stop < length ? span->stop : length; /* as slices do in Python */
        span->first = span->first < span->stop ? span->first : span->stop;
        if (__builtin_add_overflow(s->count, span_count(span), &s->count)) {
            diag("%s: too many records selected", store);
            return EXIT_FAILED;
        }
    }
    return 0;
}

size_t selection_take(struct selection *s, uint64_t *ids, size_t max)
{
    size_t taken = 0;

    while (taken < max && s->next_span < s->span_count) {
        const struct span *span = &s->spans[s->next_span];
        if (s->next_offset == span_count(span)) {
            s->next_span++;
            s->next_offset = 0;
            continue;
        }
        ids[taken++] = span->first + s->next_offset++ * span->step;
    }
    return taken;
}

void selection_release(struct selection *s)
{
    free(s->spans);
    s->spans = NULL;
}
