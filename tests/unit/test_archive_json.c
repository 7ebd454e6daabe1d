/* SPDX-License-Identifier: MIT
 *
 * JSON of Python's that jansson does not take (engine/archive_json.c, archive_meta.c).
 */
#include "archive_meta.h"
#include "support.h"

static const char *wash(const char *text)
{
    static char washed[512];
    struct zri_marks marks;
    char *copy = zri_json_wash(text, strlen(text), &marks);
    ck_assert_ptr_nonnull(copy);
    ck_assert_uint_eq(strlen(copy), strlen(text));
    snprintf(washed, sizeof washed, "%s", copy);
    free(copy);
    return washed;
}

START_TEST(what_jansson_refuses_is_replaced)
{
    static const char *const texts[][2] = {
        {"{\"a\": NaN, \"b\": [Infinity,-Infinity]}", "{\"a\": 0  , \"b\": [0       ,-0       ]}"},
        {"[123456789012345678901, -9223372036854775809]",
         "[1.3456789012345678901, -9.23372036854775809]"},
        {"\"\\u0000\\\\u0000\\ud800x\\udc00\"", "\"\\ufdd0\\\\u0000\\ufdd1x\\ufdd1\""},
        {"\"\\ufdd0\\u0000\xef\xb7\x91\\ud800\"", "\"\\ufdd0\\ufdd2\xef\xb7\x91\\ufdd3\""},
        {"\"\\ud83d\\ude00\"", "\"\\ud83d\\ude00\""},
    };
    for (size_t i = 0; i < COUNT(texts); i++)
        ck_assert_str_eq(wash(texts[i][0]), texts[i][1]);
}
END_TEST

START_TEST(everything_else_stays_as_it_is)
{
    static const char *const texts[] = {
        "",           "\\",         "\"\\",
        "\"\\u",      "\"\\u00",    "{\"NaN\": \"Infinity\\\"NaN\"}",
        "1NaN",       "NaN5",       "xInfinity",
        "-Inf",       "-",          "[1, 123456789012345678]",
        "1e400",      "1.5e-3000",  "01234567890123456789012",
        "nul\\u0000", "\"tab\\t\"", "-NaN",
    };
    for (size_t i = 0; i < COUNT(texts); i++)
        ck_assert_str_eq(wash(texts[i]), texts[i]);
}
END_TEST

#define TAIL "\"shape\": [], \"_type\": \"<class 'tensordict._td.TensorDict'>\"}"

static const char *parse(struct zri_meta *m, const char *text, struct zri_block **memory)
{
    return zri_meta_parse(m, text, strlen(text), memory);
}

START_TEST(keys_keep_their_zeros)
{
    struct zri_block *memory = NULL;
    struct zri_meta m;
    const char *why =
        parse(&m, "{\"a\\u0000b\": {\"type\": \"TensorDict\", \"x\": NaN}, " TAIL, &memory);
    ck_assert_ptr_null(why);
    ck_assert_uint_eq(m.count, 1);
    ck_assert_mem_eq(m.entries[0].key, "a\0b", 4);
    ck_assert_uint_eq(m.entries[0].key_nbytes, 3);
    free(m.entries);
    zri_block_free(memory);
}
END_TEST

START_TEST(what_is_no_description_is_refused_in_words)
{
    static const char *const texts[][2] = {
        {"", "is not JSON (line 1"},
        {"{\"a\": {\"type\": \"TensorDict\"}, \n" TAIL " x", "is not JSON (line 2"},
        {"{\"a\": {\"type\": \"TensorDict\"}, nan: 1, " TAIL, "is not JSON"},
        {"[NaN]", "is no JSON object"},
        {"{\"\\ud800\": {\"type\": \"TensorDict\"}, " TAIL, "half of a surrogate pair"},
        {"{\"a\": {\"dtype\": \"x\", \"shape\": [0, 99999999999999999999]}, " TAIL,
         "no list of sizes"},
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct zri_block *memory = NULL;
        struct zri_meta m;
        const char *why = parse(&m, texts[i][0], &memory);
        ck_assert_msg(why && strstr(why, texts[i][1]), "%s: %s", texts[i][0], why ? why : "taken");
        free(m.entries);
        zri_block_free(memory);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        what_jansson_refuses_is_replaced,
        everything_else_stays_as_it_is,
        keys_keep_their_zeros,
        what_is_no_description_is_refused_in_words,
    };
    return run_tests("archive_json", tests, COUNT(tests), 20);
}
