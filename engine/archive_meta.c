/* SPDX-License-Identifier: MIT
 *
 * meta.json, twice.  What tensordict writes for a tensordict is one object of
 * small objects with known keys and no escapes; thousands of them are read at
 * every open, so a reader for just that comes first.  Whatever surprises it goes
 * to jansson from the start, which has the last word, twice where Python wrote what
 * jansson does not take.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "archive_meta.h"

static struct zri_meta_entry *add_entry(struct zri_meta *m)
{
    if (m->count == m->capacity) {
        size_t capacity = m->capacity ? m->capacity * 2 : 32;
        struct zri_meta_entry *more = realloc(m->entries, capacity * sizeof *more);
        if (!more)
            return NULL;
        m->entries = more;
        m->capacity = capacity;
    }
    struct zri_meta_entry *e = &m->entries[m->count++];
    *e = (struct zri_meta_entry){0};
    return e;
}

/* ---------------------------------------------------------------- the quick reader */

enum outcome { FINE, SURPRISED, NO_MEMORY };

struct reader {
    const char *p; /* the text ends in a NUL, which no rule takes */
    struct zri_block **memory;
};

static void skip_space(struct reader *r)
{
    while (*r->p == ' ' || *r->p == '\n' || *r->p == '\t' || *r->p == '\r')
        r->p++;
}

static bool take(struct reader *r, char c)
{
    skip_space(r);
    if (*r->p != c)
        return false;
    r->p++;
    return true;
}

static bool take_word(struct reader *r, const char *word)
{
    size_t n = strlen(word);
    skip_space(r);
    if (strncmp(r->p, word, n))
        return false;
    r->p += n;
    return true;
}

/* Plain ASCII without escapes: the rest is jansson's. */
static bool take_string(struct reader *r, const char **s, size_t *nbytes)
{
    if (!take(r, '"'))
        return false;
    const char *start = r->p;
    while (*r->p >= ' ' && *r->p != '"' && *r->p != '\\' && *r->p != 0x7f)
        r->p++;
    if (*r->p != '"')
        return false;
    *s = start;
    *nbytes = (size_t)(r->p++ - start);
    return true;
}

static bool take_number(struct reader *r, uint64_t *v)
{
    skip_space(r);
    const char *start = r->p;
    uint64_t value = 0;
    for (; *r->p >= '0' && *r->p <= '9'; r->p++)
        value = value * 10 + (uint64_t)(*r->p - '0');
    *v = value;
    size_t digits = (size_t)(r->p - start);
    return digits > 0 && digits < 19 && (*start != '0' || digits == 1) && *r->p != '.' &&
           *r->p != 'e' && *r->p != 'E';
}

static enum outcome take_shape(struct reader *r, uint32_t *ndim, const uint64_t **shape)
{
    uint64_t dims[ZR_MAX_NDIM];
    uint32_t n = 0;
    if (!take(r, '['))
        return SURPRISED;
    while (!take(r, ']')) {
        if (n == ZR_MAX_NDIM || (n && !take(r, ',')) || !take_number(r, &dims[n]))
            return SURPRISED;
        n++;
    }
    uint64_t *copy = zri_block_alloc(r->memory, (n ? n : 1) * sizeof *copy);
    if (!copy)
        return NO_MEMORY;
    memcpy(copy, dims, n * sizeof *copy);
    *ndim = n;
    *shape = copy;
    return FINE;
}

static bool is_word(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && !memcmp(s, word, n);
}

/* {"device": "cpu", "shape": [3, 2], "dtype": "torch.float32", "is_nested": false}
 * or {"type": "TensorDict"}, after its brace. */
static enum outcome take_entry(struct reader *r, struct zri_meta_entry *e)
{
    const char *key, *text;
    size_t key_nbytes, text_nbytes;
    bool has_type = false;
    for (bool first = true; !take(r, '}'); first = false) {
        if ((!first && !take(r, ',')) || !take_string(r, &key, &key_nbytes) || !take(r, ':'))
            return SURPRISED;
        if (is_word(key, key_nbytes, "shape")) {
            enum outcome o = take_shape(r, &e->ndim, &e->shape);
            if (o != FINE)
                return o;
        } else if (is_word(key, key_nbytes, "dtype")) {
            if (!take_string(r, &e->dtype, &e->dtype_nbytes))
                return SURPRISED;
        } else if (is_word(key, key_nbytes, "is_nested")) {
            e->is_nested = take_word(r, "true");
            if (!e->is_nested && !take_word(r, "false"))
                return SURPRISED;
        } else if (is_word(key, key_nbytes, "type") || is_word(key, key_nbytes, "device")) {
            has_type |= key_nbytes == 4;
            if (!take_string(r, &text, &text_nbytes))
                return SURPRISED;
        } else {
            return SURPRISED;
        }
    }
    return has_type ? (e->dtype ? SURPRISED : FINE) : e->dtype && e->shape ? FINE : SURPRISED;
}

/* What stands beside the entries. */
static enum outcome take_attribute(struct reader *r, struct zri_meta *m, const char *key, size_t n)
{
    const char *text;
    size_t text_nbytes;
    uint64_t number;
    if (is_word(key, n, "shape"))
        return take_shape(r, &m->ndim, &m->shape);
    if (is_word(key, n, "device") || is_word(key, n, "_class"))
        return take_string(r, &text, &text_nbytes) ? FINE : SURPRISED;
    if (is_word(key, n, "_type")) {
        if (!take_string(r, &text, &text_nbytes))
            return SURPRISED;
        m->is_plain = is_word(text, text_nbytes, "<class 'tensordict._td.TensorDict'>");
        return FINE;
    }
    if (is_word(key, n, "_format_version"))
        return take_number(r, &number) && number <= 1 ? FINE : SURPRISED;
    return SURPRISED;
}

static enum outcome read_quickly(struct zri_meta *m, const char *text, struct zri_block **memory)
{
    struct reader r = {.p = text, .memory = memory};
    const char *key;
    size_t key_nbytes;
    if (!take(&r, '{'))
        return SURPRISED;
    for (bool first = true; !take(&r, '}'); first = false) {
        if ((!first && !take(&r, ',')) || !take_string(&r, &key, &key_nbytes) || !take(&r, ':'))
            return SURPRISED;
        enum outcome o;
        if (take(&r, '{')) {
            struct zri_meta_entry *e = add_entry(m);
            if (!e)
                return NO_MEMORY;
            e->key = key;
            e->key_nbytes = key_nbytes;
            o = take_entry(&r, e);
        } else {
            o = take_attribute(&r, m, key, key_nbytes);
        }
        if (o != FINE)
            return o;
    }
    skip_space(&r);
    return *r.p || !m->shape ? SURPRISED : FINE;
}

/* ---------------------------------------------------------------- by jansson */

static char *copy_text(const char *s, size_t n, struct zri_block **memory)
{
    char *copy = zri_block_alloc(memory, n + 1);
    if (copy) {
        memcpy(copy, s, n);
        copy[n] = 0;
    }
    return copy;
}

/* An array of whole numbers that are not negative; *shape stays NULL for others. */
static const char *copy_shape(const json_t *array, struct zri_block **memory, uint32_t *ndim,
                              const uint64_t **shape)
{
    size_t n = json_array_size(array);
    *shape = NULL;
    if (!json_is_array(array) || n > ZR_MAX_NDIM)
        return NULL;
    uint64_t *dims = zri_block_alloc(memory, (n ? n : 1) * sizeof *dims);
    if (!dims)
        return zri_out_of_memory;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return NULL;
        dims[i] = (uint64_t)json_integer_value(v);
    }
    *ndim = (uint32_t)n;
    *shape = dims;
    return NULL;
}

static const char *copy_key(struct zri_meta_entry *e, const char *key,
                            const struct zri_marks *marks, struct zri_block **memory)
{
    e->key_nbytes = strlen(key);
    char *copy = copy_text(key, e->key_nbytes, memory);
    e->key = copy;
    if (!copy)
        return zri_out_of_memory;
    return !marks || zri_json_unwash(copy, &e->key_nbytes, marks)
               ? NULL
               : "one of its keys holds half of a surrogate pair, which no file's name can";
}

static const char *copy_entry(struct zri_meta *m, const char *key, const json_t *value,
                              const struct zri_marks *marks, struct zri_block **memory)
{
    const json_t *type = json_object_get(value, "type");
    const json_t *dtype = json_object_get(value, "dtype");
    const json_t *shape = json_object_get(value, "shape");
    bool is_level = type && !json_is_null(type);
    if (!is_level && (!json_is_string(dtype) || !shape))
        return NULL; /* neither leaf nor level: tensordict passes it over too */
    struct zri_meta_entry *e = add_entry(m);
    if (!e)
        return zri_out_of_memory;
    const char *why = copy_key(e, key, marks, memory);
    if (why || is_level)
        return why;
    why = copy_shape(shape, memory, &e->ndim, &e->shape);
    if (!why && !e->shape)
        return "a shape in its meta.json is no list of sizes";
    e->is_nested = json_is_true(json_object_get(value, "is_nested"));
    e->dtype_nbytes = json_string_length(dtype);
    e->dtype = copy_text(json_string_value(dtype), e->dtype_nbytes, memory);
    return why ? why : e->dtype ? NULL : zri_out_of_memory;
}

static const char *read_object(struct zri_meta *m, json_t *object, const struct zri_marks *marks,
                               struct zri_block **memory)
{
    const char *key, *why = NULL;
    json_t *value;
    m->has_stack_dim = json_is_integer(json_object_get(object, "stack_dim"));
    m->has_data = json_object_get(object, "data") != NULL;
    m->has_operation = json_is_string(json_object_get(object, "custom_op"));
    if (json_integer_value(json_object_get(object, "_format_version")) > 1)
        return "its meta.json is of a newer format than this program knows";
    json_object_foreach(object, key, value)
    {
        if (json_is_object(value))
            why = copy_entry(m, key, value, marks, memory);
        else if (!strcmp(key, "shape"))
            why = copy_shape(value, memory, &m->ndim, &m->shape);
        if (why)
            return why;
    }
    return NULL;
}

static const char *not_json(const json_error_t *error, struct zri_block **memory)
{
    char text[80];
    if (json_error_code(error) == json_error_out_of_memory)
        return zri_out_of_memory;
    int n =
        snprintf(text, sizeof text, "is not JSON (line %d, column %d)", error->line, error->column);
    const char *why = copy_text(text, (size_t)n, memory);
    return why ? why : zri_out_of_memory;
}

/* jansson does not tell when memory runs out, and may even go on with half a word. */
static json_t *load(const char *text, size_t nbytes, json_error_t *error, bool *ran_out)
{
    errno = 0;
    json_t *object = json_loadb(text, nbytes, JSON_ALLOW_NUL, error);
    *ran_out = errno == ENOMEM;
    return object;
}

static const char *read_slowly(struct zri_meta *m, const char *text, size_t nbytes,
                               struct zri_block **memory)
{
    struct zri_marks marks, *washed = NULL;
    json_error_t error;
    bool ran_out;
    json_t *object = load(text, nbytes, &error, &ran_out);
    if (!object && !ran_out) {
        char *copy = zri_json_wash(text, nbytes, &marks);
        if (!copy)
            return zri_out_of_memory;
        object = load(copy, nbytes, &error, &ran_out);
        free(copy);
        washed = &marks;
    }
    const char *why = ran_out                   ? zri_out_of_memory
                      : !object                 ? not_json(&error, memory)
                      : !json_is_object(object) ? "is no JSON object"
                                                : read_object(m, object, washed, memory);
    json_decref(object);
    return why;
}

const char *zri_meta_parse(struct zri_meta *m, const char *text, size_t nbytes,
                           struct zri_block **memory)
{
    *m = (struct zri_meta){0};
    enum outcome o = read_quickly(m, text, memory);
    if (o == NO_MEMORY)
        return zri_out_of_memory;
    if (o == FINE)
        return NULL;
    free(m->entries);
    *m = (struct zri_meta){0};
    return read_slowly(m, text, nbytes, memory);
}
