/* SPDX-License-Identifier: MIT
 *
 * The arithmetic of tree.h.  It knows nothing of FUSE and holds no state.
 */
#include "tree.h"

#include <string.h>

enum { MIN_WIDTH = 8 };

static unsigned digits(uint64_t value)
{
    unsigned count = 1;
    for (; value >= 10; value /= 10)
        count++;
    return count;
}

void tree_init(struct tree *t, uint64_t length, const char *suffix)
{
    unsigned width = digits(length ? length - 1 : 0);
    t->length = length;
    t->width = width < MIN_WIDTH ? MIN_WIDTH : width;
    t->suffix = suffix;
}

size_t tree_name(const struct tree *t, uint64_t id, char *buf)
{
    size_t suffix_nbytes = strlen(t->suffix);
    for (unsigned i = t->width; i-- > 0; id /= 10)
        buf[i] = (char)('0' + id % 10);
    memcpy(buf + t->width, t->suffix, suffix_nbytes + 1);
    return t->width + suffix_nbytes;
}

bool tree_parse(const struct tree *t, const char *name, uint64_t *id)
{
    /* The width is at most that of UINT64_MAX - 1, and a number below length
     * cannot overflow on the way: stop as soon as it is too large. */
    uint64_t value = 0;
    for (unsigned i = 0; i < t->width; i++) {
        unsigned digit = (unsigned)(unsigned char)name[i] - '0';
        if (digit > 9)
            return false;
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    if (value >= t->length || strcmp(name + t->width, t->suffix) != 0)
        return false;
    *id = value;
    return true;
}

static unsigned index_bits(bool is_lone)
{
    return is_lone ? TREE_LONE_INDEX_BITS : TREE_INDEX_BITS;
}

uint64_t tree_pack(bool is_lone, struct tree_ino parts)
{
    uint64_t place = is_lone ? 0 : (uint64_t)parts.place << TREE_INDEX_BITS;
    return (uint64_t)parts.role << TREE_LONE_INDEX_BITS | place | parts.index;
}

struct tree_ino tree_unpack(bool is_lone, uint64_t ino)
{
    uint64_t below_role = ino & (((uint64_t)1 << TREE_LONE_INDEX_BITS) - 1);
    return (struct tree_ino){
        .role = (enum tree_role)(ino >> TREE_LONE_INDEX_BITS & 3),
        .place = is_lone ? 0 : (uint32_t)(below_role >> TREE_INDEX_BITS),
        .index = below_role & (((uint64_t)1 << index_bits(is_lone)) - 1),
    };
}

uint64_t tree_max_length(bool is_lone)
{
    return ((uint64_t)1 << index_bits(is_lone)) - TREE_FIRST_RECORD;
}
