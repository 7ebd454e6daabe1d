/* SPDX-License-Identifier: MIT
 *
 * The labels of a scalar store, and which records have each (classes=STREAM).
 *
 * Costs 4 bytes of memory a record while the mount lives: which records a label has
 * cannot be known otherwise without reading all labels for each listing.
 */
#ifndef ZRECORDFS_LABELS_H
#define ZRECORDFS_LABELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct labels;
struct zr_error;
struct zr_reader;

enum { LABELS_MAX_COUNT = 65536 }; /* different ones */

/* Reads all records of a Dense store of scalars: bool, integers, or strings.  Labels are
 * ranked in their order, and named so that sorted names have the same: integers with as
 * many digits as the longest.  0 or a code, with err. */
int labels_new(struct labels **out, struct zr_reader *reader, struct zr_error *err);
/* Takes NULL. */
void labels_free(struct labels *l);

size_t labels_count(const struct labels *l);
/* What a folder of it is called. */
const char *labels_name(const struct labels *l, size_t rank);
bool labels_find(const struct labels *l, const char *name, size_t *rank);
/* Its records, ascending. */
const uint32_t *labels_ids(const struct labels *l, size_t rank, size_t *count);
/* True when that record has that label. */
bool labels_has(const struct labels *l, size_t rank, uint64_t id);

#endif
