/* SPDX-License-Identifier: MIT
 *
 * Selections of records as part of a file name or a command: ids and
 * first:stop[:step] ranges, separated by commas, as the tools take them.
 * Kept as spans, so that "0:1000000000" costs nothing.
 */
#ifndef ZRECORDFS_SELECTION_H
#define ZRECORDFS_SELECTION_H

#include <stddef.h>
#include <stdint.h>

struct selection_span {
    uint64_t first, step, count;
    uint64_t position; /* of its first record in the whole selection */
};

struct selection {
    uint64_t count; /* records in all */
    size_t span_count;
    struct selection_span spans[];
};

/* Parses nbytes of text for a store of that length.  Open ends are filled: ":" is
 * everything, and ranges end where the store does, as slices do in Python.  0 and *out, to
 * be freed; EINVAL for other words, ERANGE for single records that are not there or more
 * than 2^63 in all, ENOMEM. */
int selection_parse(const char *text, size_t nbytes, uint64_t length, struct selection **out);

/* The ids at positions [position, position + count), which must exist. */
void selection_ids(const struct selection *s, uint64_t position, size_t count, uint64_t *ids);

#endif
