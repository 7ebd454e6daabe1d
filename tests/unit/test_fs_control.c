/* SPDX-License-Identifier: MIT
 *
 * The control file: the status (fs/control.c), with what feeds (fs/counters.c,
 * fs/report.c, fs/options.c).
 */
#include "ops.h"

#include <getopt.h>
#include <jansson.h>
#include <linux/fuse.h>

#include "support.h"

/* ---------------------------------------------------------------- counters */

START_TEST(percentiles_are_those_of_the_buckets)
{
    struct counters *c = counters_new();
    for (int i = 0; i < 90; i++)
        counters_latency(c, FUSE_READ, 1500); /* bucket 1024..2047 */
    for (int i = 0; i < 10; i++)
        counters_latency(c, FUSE_READ, 1 << 20);
    counters_latency(c, FUSE_LOOKUP, 0);
    counters_latency(c, FUSE_LOOKUP, INT64_MAX);
    struct counters_sum sum;
    counters_collect(c, &sum);
    const uint64_t *read = sum.latency[TIMED_READ];
    ck_assert_double_eq_tol(counters_percentile(read, 0.5), 1.448, 0.01);
    ck_assert_double_eq_tol(counters_percentile(read, 0.9), 1.448, 0.01);
    ck_assert_double_eq_tol(counters_percentile(read, 0.91), 1482.9, 1);
    ck_assert_double_eq(counters_percentile(sum.latency[TIMED_OTHER], 0.5), 0);
    counters_free(c);
}
END_TEST

START_TEST(unknown_opcodes_are_counted_as_other)
{
    struct counters *c = counters_new();
    counters_request(c, FUSE_LOOKUP);
    counters_request(c, 4096);
    counters_request(c, UINT32_MAX);
    struct counters_sum sum;
    counters_collect(c, &sum);
    ck_assert_uint_eq(sum.requests[FUSE_LOOKUP], 1);
    ck_assert_uint_eq(sum.requests[0], 2);
    ck_assert_str_eq(counters_opcode_name(FUSE_LOOKUP), "LOOKUP");
    ck_assert_ptr_null(counters_opcode_name(4096));
    counters_free(c);
}
END_TEST

START_TEST(after_a_reset_the_sums_start_from_0)
{
    struct counters *c = counters_new();
    struct counters_sum sum;
    counters_request(c, FUSE_READ);
    counters_latency(c, FUSE_READ, 1000);
    counters_add(c, EVENT_DECODES, 5);
    counters_reset(c);
    counters_collect(c, &sum);
    ck_assert_uint_eq(sum.requests[FUSE_READ] + sum.events[EVENT_DECODES], 0);
    ck_assert_double_eq(counters_percentile(sum.latency[TIMED_READ], 1), 0);
    counters_add(c, EVENT_DECODES, 2);
    counters_collect(c, &sum);
    ck_assert_uint_eq(sum.events[EVENT_DECODES], 2);
    counters_free(c);
}
END_TEST

/* ---------------------------------------------------------------- damage */

START_TEST(damaged_records_are_listed_once_and_bounded)
{
    struct report_damage *d = report_damage_new();
    struct zr_error err = {.code = ZR_E_CORRUPT, .message = "cut short"};
    for (int round = 0; round < 2; round++)
        for (uint64_t id = 0; id < REPORT_DAMAGE_MAX + 10; id++)
            report_damage_add(d, NULL, id, "name", &err);
    struct report_damage_entry entries[REPORT_DAMAGE_MAX];
    uint64_t failure_count;
    ck_assert_uint_eq(report_damage_list(d, entries, &failure_count), REPORT_DAMAGE_MAX);
    ck_assert_uint_eq(failure_count, 2 * (REPORT_DAMAGE_MAX + 10));
    ck_assert_uint_eq(entries[5].record, 5);
    ck_assert_str_eq(entries[5].message, "cut short");
    report_damage_free(d);
}
END_TEST

/* ---------------------------------------------------------------- options */

static enum options_result parse(struct options *o, int argc, const char *const *words)
{
    char *copies[16] = {NULL};
    static char *kept[16]; /* options point into the words */
    for (int i = 0; i < argc; i++) {
        free(kept[i]);
        copies[i] = kept[i] = strdup(words[i]);
    }
    optind = 0;
    return options_parse(o, argc, copies);
}
#define PARSE(o, ...)                                                                              \
    parse(o, sizeof((const char *[]){"zrecordfs", __VA_ARGS__}) / sizeof(char *),                  \
          (const char *const[]){"zrecordfs", __VA_ARGS__})

START_TEST(lists_long_forms_and_operands_in_any_order)
{
    struct options o;
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "-o",
                           "rw,allow_other,uid=7,umask=027,noexec,x-systemd.automount",
                           "--cache=2M", "--show-control", "-f"),
                     OPTIONS_RUN);
    ck_assert_str_eq(o.source, "store");
    ck_assert_str_eq(o.mountpoint, "mnt");
    ck_assert(o.allow_other && o.show_control && o.foreground && o.has_uid && !o.has_gid);
    ck_assert_uint_eq(o.uid, 7);
    ck_assert_uint_eq(o.umask, 027);
    ck_assert_uint_eq(o.cache_nbytes, 2 << 20);
    ck_assert_str_eq(o.kernel, "noexec");
}
END_TEST

START_TEST(unknown_options_and_values_are_wrong_usage)
{
    struct options o;
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "-o", "nonsense"), OPTIONS_USAGE);
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "-o", "allow_othe"), OPTIONS_USAGE);
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "-o", "uid=-1"), OPTIONS_USAGE);
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "-o", "uid"), OPTIONS_USAGE);
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "-o", "allow_other=1"), OPTIONS_USAGE);
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "-o", "cache=99999999999999999999"), OPTIONS_USAGE);
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "-o", "readdirplus=perhaps"), OPTIONS_USAGE);
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "--nonsense"), OPTIONS_USAGE);
    ck_assert_int_eq(PARSE(&o, "store"), OPTIONS_USAGE);
    ck_assert_int_eq(PARSE(&o, "store", "mnt", "more"), OPTIONS_USAGE);
}
END_TEST

START_TEST(sizes_take_units)
{
    uint64_t nbytes = 5;
    ck_assert(options_parse_nbytes("0", &nbytes) && nbytes == 0);
    ck_assert(options_parse_nbytes("3k", &nbytes) && nbytes == 3072);
    ck_assert(options_parse_nbytes("1T", &nbytes) && nbytes == UINT64_C(1) << 40);
    ck_assert(!options_parse_nbytes("", &nbytes));
    ck_assert(!options_parse_nbytes("-1", &nbytes));
    ck_assert(!options_parse_nbytes("1KB", &nbytes));
    ck_assert(!options_parse_nbytes("18446744073709551615K", &nbytes));
}
END_TEST

/* ---------------------------------------------------------------- status */

static void open_fs(struct fs *fs, const struct options *options, const char *path)
{
    const struct sources_options source = {.path = path, .mountpoint = "/mnt"};
    *fs = (struct fs){.options = options, .mountpoint = "/mnt", .is_lone = true};
    ck_assert_int_eq(sources_new(&fs->sources, &source, NULL), ZR_OK);
    fs->cache = cache_new(1 << 20, node_cache_decode, fs);
    fs->minted = minted_new(10, 1 << 20);
    fs->counters = counters_new();
    fs->damage = report_damage_new();
    fs->janitor = janitor_new(fs);
    fs->commands = commands_new();
    fs->warm = warm_new(&(struct warm_options){.thread_count = 1});
}

static void close_fs(struct fs *fs)
{
    janitor_free(fs->janitor);
    commands_free(fs->commands);
    warm_free(fs->warm);
    cache_free(fs->cache);
    minted_free(fs->minted);
    counters_free(fs->counters);
    report_damage_free(fs->damage);
    sources_free(fs->sources);
}

START_TEST(the_status_is_json_with_everything_in_it)
{
    const char *store = at("st\xff"); /* not UTF-8 */
    const struct options options = {.umask = 022};
    struct fs fs;
    make_store(store, ZR_DENSE, ZR_RAW, 2);
    open_fs(&fs, &options, store);
    counters_request(fs.counters, FUSE_READ);
    struct zr_error err = {.code = ZR_E_CORRUPT, .message = "half a record"};
    report_damage_add(fs.damage, sources_root(fs.sources), 1, "00000001.npy", &err);

    size_t nbytes;
    char *text = control_status(&fs, sources_root(fs.sources), &nbytes);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(nbytes, strlen(text));
    ck_assert_int_eq(text[nbytes - 1], '\n');
    json_t *status = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(status);

    const char *path, *dtype, *name, *octal;
    int length, rows, columns, reads;
    ck_assert_int_eq(json_unpack(status, "{s:{s:s,s:s,s:i,s:[ii]},s:{s:i},s:{s:[{s:s}]},s:{s:s}}",
                                 "store", "path", &path, "dtype", &dtype, "length", &length,
                                 "item_shape", &rows, &columns, "requests", "READ", &reads,
                                 "damaged", "records", "name", &name, "options", "umask", &octal),
                     0);
    ck_assert_str_eq(path + strlen(path) - 4, "/st?");
    ck_assert_str_eq(dtype, "|u1");
    ck_assert_int_eq(length, 2);
    ck_assert(rows == 10 && columns == 20);
    ck_assert_int_eq(reads, 1);
    ck_assert_str_eq(name, "00000001.npy");
    ck_assert_str_eq(octal, "022");

    json_decref(status);
    free(text);
    close_fs(&fs);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        percentiles_are_those_of_the_buckets,
        after_a_reset_the_sums_start_from_0,
        unknown_opcodes_are_counted_as_other,
        damaged_records_are_listed_once_and_bounded,
        lists_long_forms_and_operands_in_any_order,
        unknown_options_and_values_are_wrong_usage,
        sizes_take_units,
        the_status_is_json_with_everything_in_it,
    };
    return run_tests("fs_control", tests, COUNT(tests), 60);
}
