/* SPDX-License-Identifier: MIT
 *
 * Which stores are read through a mapping.
 *
 * From a mapping a small record costs a fraction of what it costs with pread.  But its pages
 * count as this program's memory, which is to stay small whatever the stores' sizes.  So
 * there is a budget for all stores together, and what does not fit is read.
 */
#ifndef ZRECORDFS_MAPPED_H
#define ZRECORDFS_MAPPED_H

#include "zrecord.h"

#include <stdatomic.h>
#include <stdint.h>

enum { MAPPED_BUDGET_NBYTES = 20 << 20 };

/* How to open the store at path, into access and mapped_nbytes of the options: all of it
 * mapped where the budget holds all, else its tables, else nothing.  What that takes has been
 * taken from left, to be added again when the reader is closed.  Thread safe. */
uint64_t mapped_choose(_Atomic uint64_t *left, const char *path, struct zr_reader_options *options);

#endif
