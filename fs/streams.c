/* SPDX-License-Identifier: MIT
 *
 * The policy of streams.h.
 */
#include "streams.h"

#include <stdlib.h>

enum {
    STREAMS = 16,
    HINTS = 4096,
    NEAR = 4,                  /* steps that still look like going in order */
    RUN_TO_FOLLOW = 4,         /* such steps in a row before a stream is followed, */
    RUN_GAP = 8,               /* each at most so many READs after the one before */
    FIRST_MARGIN = 2,          /* records left to a reader that is faster than the pushing; */
    MAX_MARGIN = 64,           /* doubled each time it proves to be */
    AUTO_AHEAD = 256,          /* records, */
    AUTO_NBYTES = 8 << 20,     /* or bytes, whichever is less */
    GUESSED_NBYTES = 64 << 10, /* of a record that has not been seen yet */
    MARKER_EVERY = 64,
    PIECE_NBYTES = 32 << 10
};

struct stream {
    uint64_t view;
    uint64_t last;   /* furthest position read, as far as one saw */
    uint64_t next;   /* to be pushed */
    uint64_t nbytes; /* of its records, the last ones seen; 0 not known */
    uint64_t serial; /* of its life, as streams are replaced; 0 unused */
    uint64_t used;   /* tick of the last match */
    unsigned run;    /* steps in order */
    unsigned margin;
    int cpu;         /* on which its reader was last seen; -1 not known */
    uint32_t reader; /* a thread's id; 0 not known */
    bool is_followed;
    bool is_at_end;
    bool is_unknown; /* the kernel did not hold the last inode */
};

struct hint {
    uint64_t ino, view, position;
    bool is_set;
};

struct streams {
    const struct warm_views *views;
    int ahead;
    uint64_t budget; /* bytes before a reader */
    uint64_t tick;   /* READs of the start of a record */
    uint64_t next_serial;
    struct stream all[STREAMS];
    struct hint hints[HINTS];
};

struct streams *streams_new(const struct warm_views *views, int ahead, uint64_t cache_nbytes)
{
    struct streams *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->views = views;
    s->ahead = ahead;
    s->budget = cache_nbytes / 2;
    if (ahead == WARM_AUTO && s->budget > AUTO_NBYTES)
        s->budget = AUTO_NBYTES;
    return s;
}

void streams_free(struct streams *s)
{
    free(s);
}

/* ---------------------------------------------------------------- distances */

/* How far before a reader records of that size are pushed. */
static uint64_t ahead_count(const struct streams *s, uint64_t nbytes)
{
    uint64_t wanted = s->ahead == WARM_AUTO ? AUTO_AHEAD : (uint64_t)s->ahead;
    uint64_t most = s->budget / (nbytes ? nbytes : GUESSED_NBYTES);
    return wanted < most ? wanted : most;
}

static uint64_t marker_distance(uint64_t ahead)
{
    uint64_t distance = ahead / 3;
    if (distance > MARKER_EVERY)
        return MARKER_EVERY;
    return distance < 2 ? 2 : distance;
}

/* How many records are to be pushed before that reader now; the end of its view may
 * come earlier. */
static uint64_t wanted_count(const struct streams *s, const struct stream *one)
{
    uint64_t stop = one->last + ahead_count(s, one->nbytes) + 1;
    return one->is_followed && !one->is_at_end && one->next < stop ? stop - one->next : 0;
}

uint64_t streams_pending(const struct streams *s)
{
    uint64_t count = 0;
    for (size_t i = 0; i < STREAMS; i++)
        count += wanted_count(s, &s->all[i]);
    return count;
}

/* ---------------------------------------------------------------- readers */

/* A followed stream's reader was seen at that position.  False when it is none
 * of this stream's. */
static bool advance(struct stream *one, uint64_t position, uint64_t slack)
{
    if (position > one->next + slack || position + slack + NEAR < one->last)
        return false;
    if (position > one->last)
        one->last = position;
    if (one->next <= one->last + 1) { /* overtaken */
        one->margin = one->margin < MAX_MARGIN ? one->margin * 2 : MAX_MARGIN;
        one->next = one->last + one->margin;
    }
    return true;
}

/* A step of a stream that is not followed yet.  Chance makes such steps too, in
 * a small store often, but rarely several in a short time. */
static bool step(const struct streams *s, struct stream *one, uint64_t position)
{
    int64_t distance = (int64_t)(position - one->last);
    if (distance > NEAR || distance < -NEAR || s->tick - one->used > RUN_GAP)
        return false;
    if (distance > 0) {
        one->last = position;
        one->run++;
    }
    if (one->run >= RUN_TO_FOLLOW) {
        one->is_followed = true;
        one->margin = FIRST_MARGIN;
        one->next = one->last + one->margin;
    }
    return true;
}

/* The stream of the reader that is at a position, or NULL.  jump: how far beyond the pushing it
 * may lie and still be the same reader's; where numbers tell positions, a reader further on is
 * another one. */
static struct stream *match(struct streams *s, uint64_t view, uint64_t position, uint64_t jump)
{
    for (size_t i = 0; i < STREAMS; i++) {
        struct stream *one = &s->all[i];
        if (!one->serial || one->view != view)
            continue;
        uint64_t slack = marker_distance(ahead_count(s, one->nbytes)) + jump;
        if (one->is_followed ? advance(one, position, slack) : step(s, one, position))
            return one;
    }
    return NULL;
}

static void begin(struct streams *s, uint64_t view, uint64_t position)
{
    struct stream *oldest = &s->all[0];
    for (size_t i = 1; i < STREAMS; i++)
        if (s->all[i].used < oldest->used)
            oldest = &s->all[i];
    *oldest = (struct stream){
        .view = view,
        .last = position,
        .cpu = -1,
        .serial = ++s->next_serial,
        .used = s->tick,
    };
}

static struct hint *hint_of(struct streams *s, uint64_t ino)
{
    return &s->hints[ino % HINTS];
}

void streams_expect(struct streams *s, uint64_t view, uint64_t position, uint64_t ino)
{
    *hint_of(s, ino) = (struct hint){ino, view, position, true};
}

bool streams_saw_read(struct streams *s, const struct warm_read *read, bool *has_work)
{
    const struct hint hint = *hint_of(s, read->ino);
    bool is_hinted = hint.is_set && hint.ino == read->ino && hint.view != read->view;
    struct stream *one = NULL;
    s->tick += read->is_start;
    if (is_hinted)
        one = match(s, hint.view, hint.position, STREAMS_EXPECTED);
    if (!one)
        one = match(s, read->view, read->position, 0);
    if (one) {
        one->used = s->tick;
        one->cpu = read->cpu;
        one->reader = read->reader;
        *has_work = wanted_count(s, one) > 0;
    } else if (read->is_start) {
        begin(s, read->view, read->position);
        if (is_hinted)
            begin(s, hint.view, hint.position);
    }
    return one != NULL;
}

/* ---------------------------------------------------------------- pushes */

static size_t piece_count(uint64_t nbytes)
{
    uint64_t count = PIECE_NBYTES / (nbytes ? nbytes : GUESSED_NBYTES);
    if (count > PIECE_MAX)
        return PIECE_MAX;
    return count ? (size_t)count : 1;
}

/* So that a reader who overtakes the pushing is still recognised. */
static void expect_beyond(struct streams *s, uint64_t view, uint64_t position)
{
    struct warm_item item;
    if (s->views->at(s->views->ctx, view, position + STREAMS_EXPECTED, &item))
        streams_expect(s, view, position + STREAMS_EXPECTED, item.ino);
}

static void take(struct streams *s, struct stream *one, struct piece *piece)
{
    uint64_t distance = marker_distance(ahead_count(s, one->nbytes));
    size_t most = piece_count(one->nbytes);
    *piece = (struct piece){
        .kind = PIECE_OF_STREAM,
        .serial = one->serial,
        .cpu = one->cpu,
        .reader = one->reader,
        .is_unknown = one->is_unknown,
    };
    while (piece->count < most && wanted_count(s, one)) {
        struct warm_item *item = &piece->items[piece->count];
        uint64_t position = one->next++;
        one->is_at_end = !s->views->at(s->views->ctx, one->view, position, item);
        if (one->is_at_end)
            return;
        if (item->nbytes == 0)
            continue;
        one->nbytes = item->nbytes;
        streams_expect(s, one->view, position, item->ino);
        expect_beyond(s, one->view, position);
        piece->is_marker[piece->count++] = position % distance == distance - 1;
    }
}

bool streams_take(struct streams *s, struct piece *piece)
{
    for (size_t i = 0; i < STREAMS; i++) {
        if (!wanted_count(s, &s->all[i]))
            continue;
        take(s, &s->all[i], piece);
        if (piece->count)
            return true;
    }
    return false;
}

void streams_finish(struct streams *s, const struct piece *piece)
{
    for (size_t i = 0; i < STREAMS; i++)
        if (s->all[i].serial == piece->serial)
            s->all[i].is_unknown = piece->is_unknown;
}
