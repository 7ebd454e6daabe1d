/* SPDX-License-Identifier: MIT
 *
 * The store that the tests of engine/reader.c open: N Dense records.
 */
#ifndef READER_STORES_H
#define READER_STORES_H

#include "support.h"

enum { N = 20 };

static UNUSED const char *dense(int codec)
{
    make_store(at("s"), ZR_DENSE, codec, N);
    return at("s");
}

/* Without a sidecar. */
static UNUSED const char *bare(int codec)
{
    make_bare_store(at("s"), ZR_DENSE, codec, N);
    return at("s");
}

#endif
