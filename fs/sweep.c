/* SPDX-License-Identifier: MIT
 *
 * The policy of sweep.h: a bit for each record of the views that were read lately.
 */
#include "sweep.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    VIEWS = 8,
    PATIENCE = 4096,     /* READs for which a view that is not read keeps its place */
    MAX_COUNT = 1 << 24, /* records: 2 MiB of bits */
    FIRST_READS = 256,   /* so many, and */
    SHARE = 16,          /* one in so many of a view, before it is swept */
    MANY_REPEATS = 64,   /* those who come back do not go through all */
    GRANT = 64,          /* pushes for each READ that is still seen, */
    MAX_GRANTED = 256,   /* and how many of those may be left at most */
    MARKER_EVERY = 64,
    PART_NBYTES = 32 << 10, /* taken at once, if it is more than one record */
    MEMORY_SHARE = 2,       /* of what is available, one in so many bytes */
    WORD_BITS = 64
};

enum state { WATCHED, SWEPT, OVER };

struct view {
    uint64_t ino, count; /* count 0: unused */
    uint64_t *bits;      /* read, or pushed */
    enum state state;
    uint64_t read_count, repeat_count;
    uint64_t next;    /* to be looked at */
    uint64_t granted; /* pushes */
    uint64_t record_nbytes;
    uint64_t used; /* tick of its last READ */
    int cpu;
    uint32_t reader;
};

struct sweep {
    uint64_t tick;
    struct view views[VIEWS];
};

struct sweep *sweep_new(void)
{
    return calloc(1, sizeof(struct sweep));
}

void sweep_free(struct sweep *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < VIEWS; i++)
        free(s->views[i].bits);
    free(s);
}

/* ---------------------------------------------------------------- views */

static struct view *find(const struct sweep *s, uint64_t ino)
{
    for (size_t i = 0; i < VIEWS; i++)
        if (s->views[i].count && s->views[i].ino == ino)
            return (struct view *)&s->views[i];
    return NULL;
}

bool sweep_knows(const struct sweep *s, uint64_t view)
{
    return find(s, view) != NULL;
}

void sweep_introduce(struct sweep *s, uint64_t view, uint64_t count)
{
    struct view *oldest = &s->views[0];
    if (count < FIRST_READS || count > MAX_COUNT)
        return;
    for (size_t i = 1; i < VIEWS; i++)
        if (s->views[i].used < oldest->used)
            oldest = &s->views[i];
    bool is_busy = oldest->count && oldest->state != OVER && s->tick - oldest->used < PATIENCE;
    s->tick++;
    if (is_busy)
        return;
    free(oldest->bits);
    *oldest = (struct view){.ino = view, .count = count, .used = s->tick};
    oldest->bits = calloc(count / WORD_BITS + 1, sizeof *oldest->bits);
    if (!oldest->bits)
        oldest->count = 0;
}

/* Sets a record's bit; true when it was set before. */
static bool mark(struct view *v, uint64_t position)
{
    uint64_t bit = UINT64_C(1) << (position % WORD_BITS);
    uint64_t *word = &v->bits[position / WORD_BITS];
    bool was = *word & bit;
    *word |= bit;
    return was;
}

static void end(struct view *v)
{
    v->state = OVER;
    v->granted = 0;
}

void sweep_end(struct sweep *s, uint64_t view)
{
    struct view *v = find(s, view);
    if (v)
        end(v);
}

/* ---------------------------------------------------------------- readers */

bool sweep_saw_read(struct sweep *s, uint64_t view, uint64_t position, int cpu, uint32_t reader)
{
    struct view *v = find(s, view);
    if (!v || position >= v->count)
        return false;
    v->used = ++s->tick;
    v->cpu = cpu;
    v->reader = reader;
    if (mark(v, position))
        v->repeat_count++;
    else
        v->read_count++;
    if (v->repeat_count > MANY_REPEATS)
        end(v);
    if (v->state == SWEPT)
        v->granted = v->granted + GRANT < MAX_GRANTED ? v->granted + GRANT : MAX_GRANTED;
    return v->state == WATCHED && v->read_count >= FIRST_READS && v->read_count >= v->count / SHARE;
}

/* 0 where that cannot be seen. */
static uint64_t available_nbytes(void)
{
    uint64_t kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %" SCNu64, &kib) != 1)
        ;
    fclose(file);
    return kib << 10;
}

void sweep_begin(struct sweep *s, uint64_t view, uint64_t record_nbytes)
{
    struct view *v = find(s, view);
    uint64_t nbytes;
    if (!v)
        return;
    bool fits = !__builtin_mul_overflow(v->count - v->read_count, record_nbytes, &nbytes) &&
                nbytes <= available_nbytes() / MEMORY_SHARE;
    v->record_nbytes = record_nbytes;
    v->state = fits ? SWEPT : OVER;
    v->granted = fits ? GRANT : 0;
}

/* ---------------------------------------------------------------- pushes */

static bool is_marker(uint64_t position)
{
    return position % MARKER_EVERY == MARKER_EVERY - 1;
}

static size_t take(struct view *v, uint64_t *positions, size_t count)
{
    size_t n = 0;
    uint64_t most = v->record_nbytes ? PART_NBYTES / v->record_nbytes : 1;
    if (count > most)
        count = most ? most : 1;
    while (n < count && v->granted && v->next < v->count) {
        uint64_t position = v->next++;
        if (is_marker(position) || mark(v, position))
            continue;
        positions[n++] = position;
        v->granted--;
    }
    if (v->next == v->count)
        end(v);
    return n;
}

size_t sweep_take(struct sweep *s, struct sweep_part *part, uint64_t *positions, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < VIEWS && n == 0; i++) {
        struct view *v = &s->views[i];
        *part = (struct sweep_part){v->ino, v->record_nbytes, v->cpu, v->reader};
        n = v->granted ? take(v, positions, count) : 0;
    }
    return n;
}

uint64_t sweep_pending(const struct sweep *s)
{
    uint64_t count = 0;
    for (size_t i = 0; i < VIEWS; i++)
        count += s->views[i].granted;
    return count;
}
