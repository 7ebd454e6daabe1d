/* SPDX-License-Identifier: MIT
 *
 * Images as PNG without compression, so that their size follows from their shape.
 */
#ifndef ZRECORDFS_PNG_H
#define ZRECORDFS_PNG_H

#include <stdbool.h>
#include <stdint.h>

/* How the uint8 values of an image lie. */
struct png_layout {
    uint32_t width, height;
    uint32_t channels; /* 1 grey, 3 RGB, 4 RGBA */
    bool is_planar;    /* (3, H, W): a plane after the other */
};

/* The layout of an array of that shape: (H, W), (H, W, 3), (H, W, 4) or (3, H, W), in that
 * order where two fit.  False for other shapes, and beyond what one chunk of a PNG holds. */
bool png_layout(uint32_t ndim, const uint64_t *shape, struct png_layout *layout);
uint64_t png_nbytes(const struct png_layout *layout);
/* Writes png_nbytes bytes to out. */
void png_encode(const struct png_layout *layout, const uint8_t *pixels, uint8_t *out);

#endif
