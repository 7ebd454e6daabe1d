/* SPDX-License-Identifier: MIT
 *
 * The arithmetic of tree.h.  It knows nothing of FUSE and holds no state but
 * the number of records.
 */
#include "tree.h"

#include <string.h>

static const char SUFFIX[] = ".npy";
enum { SUFFIX_NBYTES = sizeof SUFFIX - 1, MIN_WIDTH = 8 };

/* Directory positions: 0 is ".", 1 "..", 2 .control whether listed or not, and
 * record i sits at FIRST_RECORD_POS + i. */
enum { DOT_POS, DOTDOT_POS, CONTROL_POS, FIRST_RECORD_POS };

static unsigned digits(uint64_t value)
{
    unsigned count = 1;
    for (; value >= 10; value /= 10)
        count++;
    return count;
}

void tree_init(struct tree *t, uint64_t length, bool lists_control)
{
    unsigned width = digits(length ? length - 1 : 0);
    t->length = length;
    t->width = width < MIN_WIDTH ? MIN_WIDTH : width;
    t->lists_control = lists_control;
}

size_t tree_name(const struct tree *t, uint64_t id, char *buf)
{
    for (unsigned i = t->width; i-- > 0; id /= 10)
        buf[i] = (char)('0' + id % 10);
    memcpy(buf + t->width, SUFFIX, sizeof SUFFIX);
    return t->width + SUFFIX_NBYTES;
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
    if (value >= t->length || strcmp(name + t->width, SUFFIX) != 0)
        return false;
    *id = value;
    return true;
}

bool tree_ino_record(const struct tree *t, uint64_t ino, uint64_t *id)
{
    if (ino < TREE_FIRST_RECORD_INO || ino - TREE_FIRST_RECORD_INO >= t->length)
        return false;
    *id = ino - TREE_FIRST_RECORD_INO;
    return true;
}

enum tree_kind tree_next(const struct tree *t, uint64_t *pos, uint64_t *id)
{
    uint64_t at = *pos;
    if (at == CONTROL_POS && !t->lists_control)
        at++;
    if (at >= FIRST_RECORD_POS && at - FIRST_RECORD_POS >= t->length)
        return TREE_END;
    *pos = at + 1;
    if (at == DOT_POS)
        return TREE_DOT;
    if (at == DOTDOT_POS)
        return TREE_DOTDOT;
    if (at == CONTROL_POS)
        return TREE_CONTROL;
    *id = at - FIRST_RECORD_POS;
    return TREE_RECORD;
}
