/* SPDX-License-Identifier: MIT
 *
 * Keeping away from a reader's CPU (place.h).
 */
#include "place.h"

void place_init(struct place *place)
{
    place->is_known = sched_getaffinity(0, sizeof place->all, &place->all) == 0;
    place->avoided = -1;
}

/* A reader waits for nobody but the thread on its CPU that answers it, and that one steps
 * aside for all others: working there would hold up both, while another CPU is idle. */
void place_keep_away(struct place *place, int cpu)
{
    if (cpu == place->avoided || !place->is_known || cpu >= CPU_SETSIZE)
        return;
    cpu_set_t set = place->all;
    if (cpu >= 0)
        CPU_CLR(cpu, &set);
    if (CPU_COUNT(&set) > 0 && sched_setaffinity(0, sizeof set, &set) == 0)
        place->avoided = cpu;
}

unsigned place_spare_count(void)
{
    struct place place;
    place_init(&place);
    int count = place.is_known ? CPU_COUNT(&place.all) : 0;
    return count > 1 ? (unsigned)count - 1 : 1;
}
