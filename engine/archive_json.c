/* SPDX-License-Identifier: MIT
 *
 * JSON as Python writes it, which is more than jansson takes: NaN and Infinity,
 * whole numbers beyond 64 bits, zero characters in keys, halves of surrogate pairs.
 * Each is replaced in its place, by something as long, so that jansson can read the
 * rest; what it refuses then is no JSON.  Values are changed by that, and are for
 * those who have the text as it was; keys get their zeros back.
 *
 * What stands for a zero or a half is a noncharacter (U+FDD0 to U+FDEF) that the
 * text does not hold.
 */
#include <ctype.h>
#include <stdlib.h>

#include "archive_meta.h"

#define MARK_COUNT 32
#define MARK_NBYTES 3 /* of each in UTF-8: EF B7 90 to EF B7 AF */
#define DIGITS_MAX 18 /* that surely fit 64 bits */

/* The code unit of the escape at p, or a number that is none. */
static unsigned unit_at(const char *p)
{
    unsigned unit = 0;
    if (p[0] != '\\' || p[1] != 'u')
        return UINT32_MAX;
    for (int i = 2; i < 6; i++) {
        if (!isxdigit((unsigned char)p[i]))
            return UINT32_MAX;
        unit = unit << 4 | (unsigned)(p[i] <= '9' ? p[i] - '0' : (p[i] & 7) + 9);
    }
    return unit;
}

/* The number of the noncharacter at p, as UTF-8 or as an escape; MARK_COUNT if none. */
static unsigned mark_at(const char *p)
{
    const uint8_t *u = (const uint8_t *)p;
    if (u[0] == 0xef && u[1] == 0xb7 && u[2] >= 0x90 && u[2] <= 0xaf)
        return u[2] - 0x90u;
    unsigned unit = unit_at(p);
    return unit >= 0xfdd0 && unit <= 0xfdef ? unit - 0xfdd0 : MARK_COUNT;
}

/* Two that are not in the text; false when nearly all are. */
static bool choose_marks(const char *text, size_t nbytes, struct zri_marks *marks)
{
    uint64_t used = 0;
    for (size_t i = 0; i < nbytes; i++)
        used |= (uint64_t)1 << mark_at(text + i);
    unsigned *mark = &marks->zero;
    for (unsigned n = 0; n < MARK_COUNT; n++) {
        if (used >> n & 1)
            continue;
        *mark = n;
        if (mark == &marks->half)
            return true;
        mark = &marks->half;
    }
    return false;
}

static bool is_high(unsigned unit)
{
    return unit >= 0xd800 && unit < 0xdc00;
}

static bool is_low(unsigned unit)
{
    return unit >= 0xdc00 && unit < 0xe000;
}

static void put_mark(char *p, unsigned mark)
{
    static const char digits[] = "0123456789abcdef";
    p[2] = 'f';
    p[3] = 'd';
    p[4] = digits[0xd + mark / 16];
    p[5] = digits[mark % 16];
}

/* From the backslash of an escape to behind it. */
static char *wash_escape(char *p, const struct zri_marks *marks)
{
    unsigned unit = unit_at(p);
    if (unit == UINT32_MAX)
        return p + (p[1] ? 2 : 1);
    if (is_high(unit) && is_low(unit_at(p + 6)))
        return p + 12;
    if (unit == 0)
        put_mark(p, marks->zero);
    else if (is_high(unit) || is_low(unit))
        put_mark(p, marks->half);
    return p + 6;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '-' || c == '+';
}

static void put_zero(char *p, size_t nbytes)
{
    memset(p, ' ', nbytes);
    *p = '0';
}

/* Outside of strings: a word or one other character.  A large whole number becomes a
 * fraction, which no shape may be. */
static char *wash_token(char *p)
{
    size_t n = 0;
    while (is_word(p[n]))
        n++;
    char *digits = p + (*p == '-');
    size_t left = n - (size_t)(digits - p);
    if (n == 3 && !memcmp(p, "NaN", 3))
        put_zero(p, 3);
    else if (left == 8 && !memcmp(digits, "Infinity", 8))
        put_zero(digits, 8);
    else if (left > DIGITS_MAX && strspn(digits, "0123456789") == left && *digits != '0')
        digits[1] = '.';
    return p + (n ? n : 1);
}

char *zri_json_wash(const char *text, size_t nbytes, struct zri_marks *marks)
{
    char *copy = malloc(nbytes + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, nbytes);
    copy[nbytes] = 0;
    bool in_string = false, can_mark = choose_marks(copy, nbytes, marks);
    for (char *p = copy; *p;) {
        if (*p == '"')
            in_string = !in_string;
        if (in_string && *p == '\\' && can_mark)
            p = wash_escape(p, marks);
        else if (in_string && *p == '\\')
            p += p[1] ? 2 : 1;
        else
            p = in_string || *p == '"' ? p + 1 : wash_token(p);
    }
    return copy;
}

static bool is_mark(const char *p, unsigned mark)
{
    return (uint8_t)p[0] == 0xef && (uint8_t)p[1] == 0xb7 && (uint8_t)p[2] == 0x90 + mark;
}

bool zri_json_unwash(char *key, size_t *nbytes, const struct zri_marks *marks)
{
    char *out = key;
    for (const char *p = key; *p;) {
        if (is_mark(p, marks->half))
            return false;
        bool is_zero = is_mark(p, marks->zero);
        *out++ = is_zero ? 0 : *p;
        p += is_zero ? MARK_NBYTES : 1;
    }
    *nbytes = (size_t)(out - key);
    *out = 0;
    return true;
}
