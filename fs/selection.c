/* SPDX-License-Identifier: MIT
 *
 * Parsing of selections, and finding a position in one.
 */
#include "selection.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define OPEN_END UINT64_MAX

/* The text that is left. */
struct cursor {
    const char *at, *end;
};

static bool take(struct cursor *c, char wanted)
{
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static bool is_digit(const struct cursor *c)
{
    return c->at < c->end && *c->at >= '0' && *c->at <= '9';
}

/* 0, EINVAL without a digit, ERANGE. */
static int take_number(struct cursor *c, uint64_t *value)
{
    if (!is_digit(c))
        return EINVAL;
    for (*value = 0; is_digit(c); c->at++)
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, (uint64_t)(*c->at - '0'), value))
            return ERANGE;
    return *value == OPEN_END ? ERANGE : 0;
}

/* The same; an empty field leaves *value. */
static int take_field(struct cursor *c, uint64_t *value)
{
    return is_digit(c) ? take_number(c, value) : 0;
}

static int take_range(struct cursor *c, uint64_t *first, uint64_t *stop, uint64_t *step)
{
    int failure = take_field(c, first);
    if (failure || !take(c, ':'))
        return failure ? failure : EINVAL;
    failure = take_field(c, stop);
    if (!failure && take(c, ':'))
        failure = take_field(c, step);
    return failure;
}

static bool is_range(const struct cursor *c)
{
    struct cursor ahead = *c;
    while (is_digit(&ahead))
        ahead.at++;
    return ahead.at < ahead.end && *ahead.at == ':';
}

static int take_span(struct cursor *c, uint64_t length, struct selection_span *span)
{
    uint64_t first = 0, stop = OPEN_END, step = 1;
    bool is_single = !is_range(c);
    int failure = is_single ? take_number(c, &first) : take_range(c, &first, &stop, &step);
    if (failure)
        return failure;
    if (step == 0 || (!is_single && first > stop))
        return EINVAL;
    if (is_single && first >= length)
        return ERANGE;
    if (is_single)
        stop = first + 1;
    stop = stop < length ? stop : length;
    first = first < stop ? first : stop;
    uint64_t width = stop - first;
    *span = (struct selection_span){
        .first = first, .step = step, .count = width / step + (width % step != 0)};
    return 0;
}

static size_t count_spans(const char *text, size_t nbytes)
{
    size_t count = 1;
    for (size_t i = 0; i < nbytes; i++)
        count += text[i] == ',';
    return count;
}

static int take_all(struct cursor *c, uint64_t length, struct selection *s)
{
    do {
        struct selection_span *span = &s->spans[s->span_count];
        int failure = take_span(c, length, span);
        if (failure)
            return failure;
        span->position = s->count;
        if (__builtin_add_overflow(s->count, span->count, &s->count) || s->count > INT64_MAX)
            return ERANGE;
        s->span_count++;
    } while (take(c, ','));
    return c->at == c->end ? 0 : EINVAL;
}

int selection_parse(const char *text, size_t nbytes, uint64_t length, struct selection **out)
{
    struct cursor c = {text, text + nbytes};
    struct selection *s =
        malloc(sizeof *s + count_spans(text, nbytes) * sizeof(struct selection_span));
    if (!s)
        return ENOMEM;
    *s = (struct selection){0};
    int failure = take_all(&c, length, s);
    if (failure)
        free(s);
    else
        *out = s;
    return failure;
}

/* The span that holds a position. */
static size_t find(const struct selection *s, uint64_t position)
{
    size_t low = 0, high = s->span_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->spans[middle].position <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void selection_ids(const struct selection *s, uint64_t position, size_t count, uint64_t *ids)
{
    if (!count)
        return;
    const struct selection_span *span = &s->spans[find(s, position)];
    for (size_t i = 0; i < count; i++, position++) {
        while (position - span->position >= span->count)
            span++;
        ids[i] = span->first + (position - span->position) * span->step;
    }
}
