/* SPDX-License-Identifier: MIT
 *
 * The choice of plan.h.  Whoever takes fills in the whole piece, so that what came to nothing
 * (a stream found at its end, records that are all damaged) leaves no traces in the next one.
 */
#include "plan.h"

#include "jobs.h"
#include "streams.h"
#include "sweep.h"

#include <stdlib.h>

struct plan {
    struct warm_views views;
    int ahead;
    struct streams *streams;
    struct sweep *sweep;
    struct jobs jobs;
    uint64_t asked_count;   /* records of jobs, those taken included */
    uint64_t pushing_count; /* records that are taken for readers */
};

struct plan *plan_new(const struct warm_views *views, int ahead, uint64_t cache_nbytes)
{
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    plan->views = *views;
    plan->ahead = ahead;
    plan->streams = streams_new(&plan->views, ahead, cache_nbytes);
    plan->sweep = sweep_new();
    if (!plan->streams || !plan->sweep) {
        plan_free(plan);
        return NULL;
    }
    return plan;
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    jobs_release(&plan->jobs);
    sweep_free(plan->sweep);
    streams_free(plan->streams);
    free(plan);
}

static bool item_at(const struct plan *plan, uint64_t view, uint64_t position,
                    struct warm_item *item)
{
    return plan->views.at(plan->views.ctx, view, position, item);
}

/* ---------------------------------------------------------------- readers */

/* A READ in no order.  A number of records to go ahead is meant for an order. */
static bool sweep_for(struct plan *plan, const struct warm_read *read)
{
    struct warm_item item;
    if (plan->ahead != WARM_AUTO)
        return false;
    if (!sweep_knows(plan->sweep, read->view))
        sweep_introduce(plan->sweep, read->view, plan->views.count(plan->views.ctx, read->view));
    if (sweep_saw_read(plan->sweep, read->view, read->position, read->cpu, read->reader) &&
        item_at(plan, read->view, read->position, &item))
        sweep_begin(plan->sweep, read->view, item.nbytes);
    return sweep_pending(plan->sweep) > 0;
}

bool plan_saw_read(struct plan *plan, const struct warm_read *read)
{
    bool has_work = false;
    if (streams_saw_read(plan->streams, read, &has_work) || !read->is_start)
        return has_work;
    return sweep_for(plan, read);
}

void plan_expect(struct plan *plan, uint64_t view, uint64_t position, uint64_t ino)
{
    streams_expect(plan->streams, view, position, ino);
}

/* ---------------------------------------------------------------- pieces */

static void take_part(struct plan *plan, const struct sweep_part *part, const uint64_t *positions,
                      size_t count, struct piece *piece)
{
    *piece = (struct piece){
        .kind = PIECE_OF_SWEEP,
        .view = part->view,
        .cpu = part->cpu,
        .reader = part->reader,
    };
    for (size_t i = 0; i < count; i++) {
        struct warm_item *item = &piece->items[piece->count];
        piece->count += item_at(plan, part->view, positions[i], item) && item->nbytes;
    }
}

static bool take_sweep(struct plan *plan, struct piece *piece)
{
    uint64_t positions[PIECE_MAX];
    struct sweep_part part;
    size_t count;
    while ((count = sweep_take(plan->sweep, &part, positions, PIECE_MAX)) > 0) {
        take_part(plan, &part, positions, count, piece);
        if (piece->count)
            return true;
    }
    return false;
}

/* One record at a time: readers come first. */
static bool take_job(struct plan *plan, struct piece *piece)
{
    uint64_t view, position;
    while (jobs_next(&plan->jobs, &view, &position)) {
        *piece = (struct piece){.kind = PIECE_OF_JOB, .cpu = -1, .is_unknown = true};
        if (item_at(plan, view, position, &piece->items[0]) && piece->items[0].nbytes) {
            piece->count = 1;
            return true;
        }
        plan->asked_count--;
    }
    return false;
}

bool plan_take(struct plan *plan, bool is_for_readers, struct piece *piece)
{
    if (is_for_readers && (streams_take(plan->streams, piece) || take_sweep(plan, piece))) {
        plan->pushing_count += piece->count;
        return true;
    }
    return take_job(plan, piece);
}

void plan_finish(struct plan *plan, const struct piece *piece)
{
    *(piece->kind == PIECE_OF_JOB ? &plan->asked_count : &plan->pushing_count) -= piece->count;
    if (piece->kind == PIECE_OF_STREAM)
        streams_finish(plan->streams, piece);
    if (piece->kind == PIECE_OF_SWEEP && piece->is_unknown)
        sweep_end(plan->sweep, piece->view);
}

bool plan_add(struct plan *plan, const struct job *job)
{
    bool fits = jobs_add(&plan->jobs, job);
    plan->asked_count += fits ? job->count : 0;
    return fits;
}

uint64_t plan_asked_count(const struct plan *plan)
{
    return plan->asked_count;
}

uint64_t plan_ahead_count(const struct plan *plan)
{
    return plan->pushing_count + sweep_pending(plan->sweep) + streams_pending(plan->streams);
}
