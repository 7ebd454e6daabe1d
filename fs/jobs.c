/* SPDX-License-Identifier: MIT
 *
 * The queue of jobs.h.
 */
#include "jobs.h"

#include <stdlib.h>
#include <string.h>

static uint64_t *copy_positions(const struct warm_range *range)
{
    size_t nbytes = range->count * sizeof *range->positions;
    uint64_t *positions = malloc(nbytes ? nbytes : 1);
    if (positions)
        memcpy(positions, range->positions, nbytes);
    return positions;
}

bool job_init(struct job *job, const struct warm_range *range)
{
    *job = (struct job){range->view, NULL, range->start, range->step, range->count, 0};
    if (range->positions)
        job->positions = copy_positions(range);
    return !range->positions || job->positions;
}

void job_release(struct job *job)
{
    free(job->positions);
}

bool jobs_add(struct jobs *jobs, const struct job *job)
{
    if (jobs->count == JOBS)
        return false;
    jobs->all[(jobs->first + jobs->count++) % JOBS] = *job;
    return true;
}

static void end_first(struct jobs *jobs)
{
    job_release(&jobs->all[jobs->first]);
    jobs->first = (jobs->first + 1) % JOBS;
    jobs->count--;
}

void jobs_release(struct jobs *jobs)
{
    while (jobs->count)
        end_first(jobs);
}

bool jobs_next(struct jobs *jobs, uint64_t *view, uint64_t *position)
{
    while (jobs->count && jobs->all[jobs->first].done == jobs->all[jobs->first].count)
        end_first(jobs);
    if (!jobs->count)
        return false;
    struct job *job = &jobs->all[jobs->first];
    uint64_t i = job->done++;
    *view = job->view;
    *position = job->positions ? job->positions[i] : job->start + i * job->step;
    return true;
}
