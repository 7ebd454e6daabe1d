/* SPDX-License-Identifier: MIT
 *
 * The measurement of ways.h, in epochs of some requests.
 */
#include "ways.h"

enum {
    EPOCH_COUNTED = 24, /* the shortest of them count: others met some noise */
    TRIAL_EPOCHS = 4,   /* a way's cost is its best of so many: placing threads takes the
                           scheduler a moment */
    STINT_EPOCHS = 60,  /* how long the better way is kept before the next trial */
    LONG_STINT_EPOCHS = 600,
    SLOW_FACTOR = 3
};

void ways_init(struct ways *w, bool spins)
{
    *w = (struct ways){.spins = spins, .epochs_left = TRIAL_EPOCHS, .stint_epochs = TRIAL_EPOCHS};
}

/* One way is so much better that there is little to be learnt soon, if the trial before said
 * so too: what was asked for may have changed between the two ways. */
static bool is_far(const struct ways *w)
{
    return w->cost_nsec[!w->spins] > w->cost_nsec[w->spins] / 2 * 3;
}

/* Ends a stint: after a stint of the better way comes a trial of the other, after
 * that the better of the two.  Burning a CPU has to be worth it. */
static void change_way(struct ways *w)
{
    bool was_trial = w->stint_epochs == TRIAL_EPOCHS;
    bool is_known = w->cost_nsec[!w->spins] != 0;
    if (was_trial && is_known)
        w->spins = w->cost_nsec[true] < w->cost_nsec[false] / 16 * 15;
    else
        w->spins = !w->spins;
    w->stint_epochs = TRIAL_EPOCHS;
    if (was_trial && is_known) {
        w->stint_epochs = w->was_far && is_far(w) ? LONG_STINT_EPOCHS : STINT_EPOCHS;
        w->was_far = is_far(w);
    }
    w->epochs_left = w->stint_epochs;
    if (w->epochs_left == TRIAL_EPOCHS)
        w->cost_nsec[w->spins] = 0;
}

static void account_epoch(struct ways *w)
{
    int64_t sum = 0;
    for (unsigned i = 0; i < EPOCH_COUNTED; i++)
        sum += w->epoch_nsec[i];
    int64_t *cost = &w->cost_nsec[w->spins];
    if (w->epochs_left == TRIAL_EPOCHS || *cost == 0 || sum < *cost)
        *cost = sum; /* of a long stint, the end counts */
    w->request_count = 0;
    if (--w->epochs_left == 0)
        change_way(w);
}

void ways_note(struct ways *w, int64_t nsec)
{
    bool is_slow = nsec > w->cost_nsec[w->spins] * SLOW_FACTOR / EPOCH_COUNTED;
    w->slow_count = is_slow ? w->slow_count + 1 : 0;
    unsigned at = w->request_count++;
    for (; at > 0 && w->epoch_nsec[at - 1] > nsec; at--)
        w->epoch_nsec[at] = w->epoch_nsec[at - 1];
    w->epoch_nsec[at] = nsec;
    if (w->request_count == WAYS_EPOCH)
        account_epoch(w);
}
