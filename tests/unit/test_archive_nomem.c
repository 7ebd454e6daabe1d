/* SPDX-License-Identifier: MIT
 *
 * Archives when memory runs out at any allocation: ZR_E_NOMEM or the right result,
 * nothing lost, and no file that should not be there.
 */
#include "archive.h"
#include "nomem.h"

#define LEAF                                                                                       \
    "{\"device\": \"cpu\", \"shape\": [40000], \"dtype\": \"torch.uint8\", \"is_nested\": false}"
#define END                                                                                        \
    "\"shape\": [], \"device\": \"cpu\", "                                                         \
    "\"_type\": \"<class 'tensordict._td.TensorDict'>\", \"_format_version\": 1}"
#define LONG_TEXT                                                                                  \
    "a text of more bytes than any buffer of a parser has room for at first, so that it has to "   \
    "be made larger more than once while the text is taken in, and once more after that"
#define LONG_KEY                                                                                   \
    "k123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890"
#define DEEP LONG_KEY LONG_KEY "/" LONG_KEY LONG_KEY "/" LONG_KEY LONG_KEY

/* It fills a block of memory to the end, so the next look-up needs a new one. */
static char class_text[100001];

/* A level of each kind: one the quick reader knows, one with escapes, a stack, a
 * tensorclass, a view; and a name that needs more than the usual room. */
static const char *const texts[][2] = {
    {"meta.json", "{\"x\": " LEAF ", \"odd\": {\"type\": \"TensorDict\"}, "
                  "\"stack\": {\"type\": \"LazyStackedTensorDict\"}, "
                  "\"class\": {\"type\": \"Thing\"}, \"view\": {\"type\": \"View\"}, "
                  "\"" LONG_KEY LONG_KEY "\": " LEAF ", " END},
    {"odd/meta.json", "{\"note\": \"" LONG_TEXT "\", \"caf\\u00e9" LONG_KEY "\": " LEAF ", " END},
    {"stack/meta.json", "{\"_type\": \"LazyStackedTensorDict\", \"stack_dim\": 0}"},
    {"stack/0/meta.json", "{\"y\": " LEAF ", " END},
    {"stack/1/meta.json", "{\"y\": " LEAF ", " END},
    {"class/meta.json", class_text},
    {"class/_tensordict/meta.json", "{\"z\": " LEAF ", " END},
    {"view/meta.json", "{\"custom_op\": \"view\", \"shape\": [2]}"},
    {"view/_source/meta.json", "{\"v\": " LEAF ", " END},
    {DEEP "/note.txt", LONG_TEXT}, /* its header is longer than most */
};

static const char *const leaves[] = {
    "x.memmap",
    LONG_KEY LONG_KEY ".memmap",
    "odd/caf\u00e9" LONG_KEY ".memmap",
    "stack/0/y.memmap",
    "stack/1/y.memmap",
    "class/_tensordict/z.memmap",
    "view/_source/v.memmap",
};

enum { LEAF_NBYTES = 40000, LEAF_COUNT = COUNT(leaves), TEXT_COUNT = COUNT(texts) };

static struct zr_archive_source sources[TEXT_COUNT + LEAF_COUNT];
static uint8_t bytes[LEAF_COUNT][LEAF_NBYTES], out[LEAF_COUNT][LEAF_NBYTES];
static char dir[100], archive[100], wide[100], fresh[100], fresh_dir[100], there[100];
static const char *method;

struct work {
    int (*run)(struct zr_error *err);
    const char *name;
};

/* ---------------------------------------------------------------- the work */

static struct zr_archive_save_options options(void)
{
    return (struct zr_archive_save_options){.method = method, .thread_count = 1};
}

static int save(struct zr_error *err)
{
    const struct zr_archive_save_options o = options();
    return zr_archive_save(fresh, sources, COUNT(sources), &o, err);
}

static int pack(struct zr_error *err)
{
    const struct zr_archive_save_options o = options();
    return zr_archive_pack(dir, fresh, &o, err);
}

static int unpack_to(const char *path, struct zr_error *err)
{
    const struct zr_archive_unpack_options o = {.thread_count = 1};
    return zr_archive_unpack(archive, path, &o, err);
}

static int unpack(struct zr_error *err)
{
    return unpack_to(fresh_dir, err);
}

static int unpack_over(struct zr_error *err)
{
    return unpack_to(there, err);
}

/* Tensordicts, a stack, a tensorclass and a view, all leaves; not the empty level
 * that a text could be read as. */
static bool is_right_tree(const struct zr_archive_tree *tree)
{
    unsigned kinds[ZR_LEVEL_VALUE + 1] = {0};
    for (size_t i = 0; i < tree->level_count; i++)
        kinds[tree->levels[i].kind]++;
    return tree->leaf_count == LEAF_COUNT && kinds[ZR_LEVEL_TENSORDICT] == 6 &&
           kinds[ZR_LEVEL_STACK] == 1 && kinds[ZR_LEVEL_TENSORCLASS] == 1 &&
           kinds[ZR_LEVEL_VIEW] == 1;
}

static int list_tree(const struct zr_archive *a, struct zr_error *err)
{
    const struct zr_archive_tree *tree;
    int rc = zr_archive_tree(a, NULL, 0, &tree, err);
    if (!rc && !is_right_tree(tree))
        rc = WRONG_BYTES;
    zr_archive_tree_free(tree);
    return rc;
}

/* Through a tensorclass, whose inner level is not named, and whose own name is so
 * long that looking for that level takes the first bytes of a block. */
enum { WIDE_NBYTES = 21000 };
static char wide_key[WIDE_NBYTES + 1];

static void save_wide(void)
{
    static char names[3][WIDE_NBYTES + 40];
    static const char *const inside[] = {"meta.json", "_tensordict/meta.json",
                                         "_tensordict/z.memmap"};
    struct zr_archive_source wide_sources[] = {
        {.data = "{}", .nbytes = 2},
        {.data = texts[6][1], .nbytes = strlen(texts[6][1])},
        {.data = bytes[0], .nbytes = LEAF_NBYTES},
    };
    memset(wide_key, 'k', WIDE_NBYTES);
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(names[i], sizeof names[i], "%s/%s", wide_key, inside[i]);
        wide_sources[i].name = names[i];
    }
    expect_ok(zr_archive_save(wide, wide_sources, COUNT(wide_sources), NULL, &err));
}

static int list_leaf(const struct zr_archive *a, struct zr_error *err)
{
    static const char *const keys[] = {wide_key, "z"};
    const struct zr_archive_tree *tree;
    int rc = zr_archive_tree(a, keys, 2, &tree, err);
    if (!rc && (tree->leaf_count != 1 || tree->level_count))
        rc = WRONG_BYTES;
    zr_archive_tree_free(tree);
    return rc;
}

static int with_archive(const char *path,
                        int (*use)(const struct zr_archive *a, struct zr_error *err),
                        struct zr_error *err)
{
    struct zr_archive *a;
    int rc = zr_archive_open(&a, path, ZR_ARCHIVE_COPY, err);
    if (!rc)
        rc = use(a, err);
    zr_archive_close(a);
    return rc;
}

static int list(struct zr_error *err)
{
    return with_archive(archive, list_tree, err);
}

static int list_subpath(struct zr_error *err)
{
    return with_archive(wide, list_leaf, err);
}

static int read_leaves(const struct zr_archive *a, struct zr_error *err)
{
    const struct zr_archive_read_options alone = {.thread_count = 1};
    struct zr_archive_copy copies[LEAF_COUNT];
    int rc = ZR_OK;
    for (size_t i = 0; !rc && i < LEAF_COUNT; i++) {
        copies[i].out = out[i];
        rc = zr_archive_find(a, leaves[i], &copies[i].index, err);
    }
    memset(out, 0, sizeof out);
    if (!rc)
        rc = zr_archive_read(a, copies, LEAF_COUNT, &alone, err);
    return rc ? rc : memcmp(out, bytes, sizeof out) ? WRONG_BYTES : ZR_OK;
}

static int read_all(struct zr_error *err)
{
    return with_archive(archive, read_leaves, err);
}

static int verify_leaves(const struct zr_archive *a, struct zr_error *err)
{
    struct zr_verify_result found;
    int rc = zr_archive_verify(a, NULL, NULL, NULL, &found, err);
    return rc ? rc : found.bad_count ? WRONG_BYTES : ZR_OK;
}

static int verify(struct zr_error *err)
{
    return with_archive(archive, verify_leaves, err);
}

static int refresh(struct zr_error *err)
{
    return zr_archive_refresh(archive, NULL, NULL, err);
}

/* ---------------------------------------------------------------- what is there then */

static void write_tree(const char *root)
{
    static const char *const folders[] = {"",
                                          "odd",
                                          "stack",
                                          "stack/0",
                                          "stack/1",
                                          "class",
                                          "class/_tensordict",
                                          "view",
                                          "view/_source",
                                          LONG_KEY LONG_KEY,
                                          LONG_KEY LONG_KEY "/" LONG_KEY LONG_KEY,
                                          DEEP};
    for (size_t i = 0; i < COUNT(folders); i++)
        ck_assert(mkdir(at("%s/%s", root, folders[i]), 0777) == 0);
    for (size_t i = 0; i < COUNT(sources); i++)
        spit(at("%s/%s", root, sources[i].name), sources[i].data, sources[i].nbytes);
}

static void prepare(const char *new_method)
{
    method = new_method;
    zr_set_thread_count(1);
    memset(class_text, ' ', sizeof class_text - 1);
    static const char refused[] = "{\"jansson refuses\": NaN}";
    memcpy(class_text, refused, strlen(refused));
    for (size_t i = 0; i < TEXT_COUNT; i++)
        sources[i] = (struct zr_archive_source){
            .name = texts[i][0], .data = texts[i][1], .nbytes = strlen(texts[i][1])};
    for (size_t i = 0; i < LEAF_COUNT; i++) {
        fill_record(i, bytes[i], LEAF_NBYTES);
        sources[TEXT_COUNT + i] = (struct zr_archive_source){
            .name = leaves[i], .data = bytes[i], .nbytes = LEAF_NBYTES, .is_payload = true};
    }
    strcpy(dir, at("dir"));
    strcpy(there, at("there"));
    strcpy(archive, at("archive.tdz"));
    strcpy(wide, at("wide.tdz"));
    strcpy(fresh, archive);
    expect_ok(save(&err));
    save_wide();
    strcpy(fresh, at("fresh.tdz"));
    strcpy(fresh_dir, at("fresh"));
    remove_tree(dir);
    remove_tree(there);
    write_tree("dir");
    write_tree("there");
    unlink(at("there/x.memmap")); /* one file to add, the others to replace */
}

static unsigned tree_size;
static int count_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)path, (void)st, (void)type, (void)ftw;
    tree_size++;
    return 0;
}

static unsigned size_of_tree(const char *path)
{
    tree_size = 0;
    ck_assert(nftw(path, count_entry, 16, FTW_PHYS) == 0);
    return tree_size;
}

static void check_archive(const char *path)
{
    char kept[sizeof archive];
    strcpy(kept, archive);
    strcpy(archive, path);
    expect_ok(verify(&err));
    expect_ok(read_all(&err));
    strcpy(archive, kept);
}

static void check_tree(const char *root)
{
    for (size_t i = 0; i < COUNT(sources); i++) {
        size_t nbytes;
        uint8_t *file = slurp(at("%s/%s", root, sources[i].name), &nbytes);
        ck_assert_uint_eq(nbytes, sources[i].nbytes);
        ck_assert(!memcmp(file, sources[i].data, nbytes));
        free(file);
    }
}

/* The folder of the test as prepare() left it, and what the work made. */
static void check_files(int rc)
{
    ck_assert(exists(fresh) <= (rc == ZR_OK) && exists(fresh_dir) <= (rc == ZR_OK));
    if (exists(fresh))
        check_archive(fresh);
    if (exists(fresh_dir))
        check_tree("fresh");
    check_archive(archive);
    unlink(fresh);
    remove_tree(fresh_dir);
    if (exists(at("there/x.memmap"))) {
        ck_assert_int_eq(rc, ZR_OK);
        check_tree("there");
        unlink(at("there/x.memmap"));
    }
    ck_assert_uint_eq(entry_count(test_dir), 4);
    ck_assert_uint_eq(size_of_tree(there), size_of_tree(dir) - 1);
}

static void check_outcome(const struct work *w, unsigned k, int rc, const struct zr_error *e)
{
    ck_assert_msg(rc == ZR_OK || rc == ZR_E_NOMEM, "%s %s, allocation %u: %s: %s", w->name, method,
                  k, rc == WRONG_BYTES ? "wrong result" : zr_code_name(rc),
                  rc < 0 ? e->message : "");
    ck_assert(rc == ZR_OK || (e->code == rc && e->message[0]));
    check_files(rc);
}

static unsigned fail_each(const struct work *w, bool for_good)
{
    struct zr_error e = {0};
    ck_assert_int_eq(w->run(&e), ZR_OK); /* what is made once a process is there now */
    check_files(ZR_OK);
    unsigned refused = 0;
    bool reached = true;
    for (unsigned k = 1; reached; k++) {
        long before = count_live();
        e = (struct zr_error){0};
        plan_failure(k, for_good ? UINT32_MAX : k);
        int rc = w->run(&e);
        reached = atomic_load(&calls) >= k;
        plan_failure(0, 0);
        ck_assert_msg(count_live() == before, "%s %s, allocation %u: %ld blocks lost", w->name,
                      method, k, count_live() - before);
        check_outcome(w, k, rc, &e);
        refused += rc != ZR_OK;
    }
    return refused;
}

static void fail_each_of(const struct work *w, bool is_plain)
{
    static const char *const methods[] = {"stored", "deflate", "bzip2", "lzma"};
    for (size_t i = 0; i < (is_plain ? 1 : COUNT(methods)); i++) {
        prepare(methods[i]);
        ck_assert_uint_gt(fail_each(w, false), 2);
        ck_assert_uint_gt(fail_each(w, true), 2);
    }
}

#define OUT_OF_MEMORY_TEST(test_name, function, is_plain)                                          \
    START_TEST(test_name)                                                                          \
    {                                                                                              \
        skip_under(instrumented, "a sanitizer has its own allocator");                             \
        fail_each_of(&(struct work){function, #function}, is_plain);                               \
    }                                                                                              \
    END_TEST

OUT_OF_MEMORY_TEST(listing_without_memory, list, true)
OUT_OF_MEMORY_TEST(listing_a_subpath_without_memory, list_subpath, true)
OUT_OF_MEMORY_TEST(reading_without_memory, read_all, false)
OUT_OF_MEMORY_TEST(verifying_without_memory, verify, false)
OUT_OF_MEMORY_TEST(refreshing_without_memory, refresh, true)
OUT_OF_MEMORY_TEST(saving_without_memory, save, false)
OUT_OF_MEMORY_TEST(packing_without_memory, pack, false)
OUT_OF_MEMORY_TEST(unpacking_without_memory, unpack, false)
OUT_OF_MEMORY_TEST(unpacking_over_a_tree_without_memory, unpack_over, false)

int main(void)
{
    const TTest *const tests[] = {
        listing_without_memory,
        listing_a_subpath_without_memory,
        reading_without_memory,
        verifying_without_memory,
        refreshing_without_memory,
        saving_without_memory,
        packing_without_memory,
        unpacking_without_memory,
        unpacking_over_a_tree_without_memory,
    };
    return run_tests("archive_nomem", tests, COUNT(tests), 120);
}
