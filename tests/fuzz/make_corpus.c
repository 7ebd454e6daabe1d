/* SPDX-License-Identifier: MIT
 *
 * Writes the seeds of the corpora: small sound inputs and one of each hostile
 * kind.  What fuzzing found beside them lies in the same folders.
 *
 *     gcc -D_GNU_SOURCE -Iengine -o build/make_corpus tests/fuzz/make_corpus.c \
 *         build/libzrecord.a -pthread -lzstd -lmsgpackc -ldeflate -llzma -lbz2 -ljansson
 *     build/make_corpus tests/fuzz/corpus
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "store_input.h"

#define FILE_MAX 60000

struct bytes {
    size_t n;
    uint8_t b[FILE_MAX];
};

/* The parts of one input, in the order of store_input.h. */
struct parts {
    uint8_t flags;
    struct bytes page, table, dict, side, data;
};

static const char *corpus;
static char work[] = "/tmp/zrecord-corpus-XXXXXX";

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    perror(what);
    exit(1);
}

static void save(const char *kind, const char *name, const struct bytes *x)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", corpus, kind, name);
    FILE *f = fopen(path, "wb");
    must(f && fwrite(x->b, 1, x->n, f) == x->n && !fclose(f), path);
}

static void add(struct bytes *x, const void *p, size_t n)
{
    must(x->n + n <= FILE_MAX, "too large");
    memcpy(x->b + x->n, p, n);
    x->n += n;
}

/* ---------------------------------------------------------------- stores */

static void save_store(const char *name, const struct parts *p)
{
    static struct bytes out;
    const struct bytes *const counted[] = {&p->page, &p->table, &p->dict, &p->side};
    out.n = 0;
    add(&out, &p->flags, 1);
    for (int i = 0; i < 4; i++) {
        uint8_t n[2] = {(uint8_t)counted[i]->n, (uint8_t)(counted[i]->n >> 8)};
        add(&out, n, 2);
    }
    for (int i = 0; i < 4; i++)
        add(&out, counted[i]->b, counted[i]->n);
    add(&out, p->data.b, p->data.n);
    save("store", name, &out);
}

static bool load(const char *name, struct bytes *x)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/s/%s", work, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, x->b, FILE_MAX);
    must(n >= 0, path);
    x->n = (size_t)n;
    close(fd);
    unlink(path);
    return true;
}

/* Takes the store at work/s apart, and removes it. */
static void take_apart(struct parts *p)
{
    static struct bytes meta;
    char path[4096];
    memset(p, 0, sizeof *p);
    must(load("meta.zr", &meta), "meta.zr");
    size_t page = 4096;
    while (page && !meta.b[page - 1])
        page--;
    add(&p->page, meta.b, page);
    add(&p->table, meta.b + 4096, meta.n - 4096);
    p->flags = STORE_PAD_PAGE;
    p->flags |= load("data.zr", &p->data) ? STORE_HAS_DATA : 0;
    p->flags |= load("dict.zr", &p->dict) ? STORE_HAS_DICT : 0;
    p->flags |= load("side.zr", &p->side) ? STORE_HAS_SIDE | STORE_SIGN_SIDE | STORE_CHECKSUMS : 0;
    snprintf(path, sizeof path, "%s/s", work);
    must(!rmdir(path), path);
}

static struct zr_writer *begin(const struct zr_writer_options *o)
{
    char path[4096];
    struct zr_error err;
    struct zr_writer *w;
    snprintf(path, sizeof path, "%s/s", work);
    must(!zr_writer_create(&w, path, o, &err), err.message);
    return w;
}

static void finish(struct zr_writer *w, struct parts *p)
{
    struct zr_error err;
    must(!zr_writer_close(w, &err), err.message);
    take_apart(p);
}

static size_t make_dict(uint8_t *dict, size_t capacity)
{
    static char samples[200 * 64];
    size_t sizes[200], n;
    struct zr_error err;
    for (int i = 0; i < 200; i++) {
        snprintf(samples + i * 64, 64, "sample %d of a small text, number %d, end %d........", i,
                 i * 7919, i % 13);
        sizes[i] = 64;
    }
    must(!zr_dict_train(samples, sizes, 200, dict, capacity, &n, &err), err.message);
    return n;
}

static void make_dense(struct parts *p, int codec, uint64_t count, bool no_sidecar)
{
    static const uint64_t shape[] = {3, 4};
    static uint8_t dict[1024];
    static uint32_t rows[64][3][4];
    struct zr_writer_options o = {.codec = codec,
                                  .dtype = "<u4",
                                  .ndim = 2,
                                  .item_shape = shape,
                                  .durability = ZR_NO_FSYNC,
                                  .no_sidecar = no_sidecar};
    if (codec == ZR_ZSTD_DICT) {
        o.dict = dict;
        o.dict_nbytes = make_dict(dict, sizeof dict);
    }
    for (uint32_t i = 0; i < 64 * 12; i++)
        ((uint32_t *)rows)[i] = i * i;
    struct zr_writer *w = begin(&o);
    if (count)
        must(!zr_writer_append_dense(w, rows, count, NULL), "append");
    finish(w, p);
}

static void make_ragged(struct parts *p, int codec, bool no_sidecar)
{
    static const uint64_t a[] = {5}, b[] = {2, 1, 3}, c[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const uint16_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static uint8_t dict[1024];
    const struct zr_item items[] = {{data, a, 1}, {data, NULL, 0}, {data, b, 3}, {data, c, 9}};
    struct zr_writer_options o = {.geometry = ZR_RAGGED,
                                  .codec = codec,
                                  .dtype = ">u2",
                                  .durability = ZR_NO_FSYNC,
                                  .no_sidecar = no_sidecar};
    if (codec == ZR_ZSTD_DICT) {
        o.dict = dict;
        o.dict_nbytes = make_dict(dict, sizeof dict);
    }
    struct zr_writer *w = begin(&o);
    must(!zr_writer_append_ragged(w, items, 4, NULL), "append");
    finish(w, p);
}

static void put32(struct bytes *x, size_t at, uint32_t v)
{
    memcpy(x->b + at, &v, 4);
}

static void put64(struct bytes *x, size_t at, uint64_t v)
{
    memcpy(x->b + at, &v, 8);
}

static void set_schema(struct parts *p, const void *schema, uint32_t nbytes)
{
    p->page.n = 32;
    put32(&p->page, 16, nbytes);
    add(&p->page, schema, nbytes);
}

static void sound_stores(void)
{
    static struct parts p;
    static const char *const codecs[] = {"raw", "zstd", "dict"};
    char name[64];
    for (int codec = 0; codec < 3; codec++)
        for (int bare = 0; bare < 2; bare++) {
            make_dense(&p, codec, 7, bare);
            snprintf(name, sizeof name, "dense-%s%s", codecs[codec], bare ? "-bare" : "");
            save_store(name, &p);
            make_ragged(&p, codec, bare);
            snprintf(name, sizeof name, "ragged-%s%s", codecs[codec], bare ? "-bare" : "");
            save_store(name, &p);
        }
    make_dense(&p, ZR_ZSTD, 0, false);
    save_store("empty", &p);
}

static void hostile_headers(void)
{
    static struct parts p, base;
    make_dense(&base, ZR_ZSTD, 7, false);
#define CASE(name, ...)                                                                            \
    do {                                                                                           \
        p = base;                                                                                  \
        __VA_ARGS__;                                                                               \
        save_store(name, &p);                                                                      \
    } while (0)
    CASE("header-length-huge", put64(&p.page, 0, UINT64_MAX));
    CASE("header-length-one-more", put64(&p.page, 0, 8));
    CASE("header-tail-huge", put64(&p.page, 8, UINT64_MAX));
    CASE("header-schema-length-zero", put32(&p.page, 16, 0));
    CASE("header-schema-length-4065", put32(&p.page, 16, 4065));
    CASE("header-schema-length-huge", put32(&p.page, 16, UINT32_MAX));
    CASE("header-reserved-byte", p.page.b[25] = 1);
    CASE("header-codec-3", p.page.b[31] = 3);
    CASE("header-codec-raw-for-zstd", p.page.b[31] = 0);
    CASE("header-codec-dict-for-zstd", p.page.b[31] = 2);
    CASE("page-short", p.flags &= (uint8_t)~STORE_PAD_PAGE);
    CASE("page-empty", p.flags &= (uint8_t)~STORE_PAD_PAGE; p.page.n = p.table.n = 0);
    CASE("padding-not-zero", add(&p.page, "\0\1", 2));
    CASE("table-short", p.table.n -= 3);
    CASE("data-short", p.data.n -= 5);
    CASE("data-missing", p.flags &= (uint8_t)~STORE_HAS_DATA);
    CASE("dict-unexpected", p.flags |= STORE_HAS_DICT; add(&p.dict, "dictionary", 10));
    CASE("sidecar-short", p.side.n = 70);
    CASE("sidecar-damaged", p.flags &= (uint8_t)~STORE_SIGN_SIDE; p.side.b[17] ^= 1);
    CASE("sidecar-row-flipped", p.side.b[64] ^= 1);
    CASE("frame-flipped", p.data.b[6] ^= 0x55);
    CASE("entry-offset-past-end", put64(&p.table, 16, 1 << 30));
    CASE("entry-offset-wraps", put64(&p.table, 16, UINT64_MAX - 3));
    CASE("entry-phys-zero", put32(&p.table, 24, 0));
    CASE("entry-phys-huge", put32(&p.table, 24, UINT32_MAX));
    CASE("entry-logic-other", put32(&p.table, 28, 47));
    CASE("entries-overlap", memcpy(p.table.b + 16, p.table.b, 16));
    make_ragged(&base, ZR_ZSTD, false);
    CASE("ragged-entry-logic-2gib", put32(&p.table, 12, 1u << 31));
    CASE("ragged-entry-logic-8", put32(&p.table, 12, 8));
    CASE("ragged-entry-logic-over", put32(&p.table, 12, UINT32_MAX));
    CASE("ragged-side-rank-wrong", p.side.b[64 + 4] = 3 * 63 + 2);
    CASE("ragged-side-header-wrong", p.side.b[64 + 4] = 0xff);
    make_ragged(&base, ZR_RAW, true);
    CASE("ragged-rank-huge", put64(&p.data, 0, UINT64_MAX));
    CASE("ragged-rank-65", put64(&p.data, 0, 65));
    CASE("ragged-dim-wraps", put64(&p.data, 8, (uint64_t)1 << 63));
    CASE("ragged-dim-zero", put64(&p.data, 8, 0));
    make_ragged(&base, ZR_ZSTD_DICT, true);
    CASE("dict-missing", p.flags &= (uint8_t)~STORE_HAS_DICT);
    CASE("dict-empty", p.dict.n = 0);
    CASE("dict-cut", p.dict.n = 40);
    CASE("dict-other-id", p.dict.b[4] ^= 1);
    CASE("dict-raw-content", p.dict.b[0] ^= 1);
#undef CASE
}

static void hostile_schemas(void)
{
    static const struct {
        const char *name, *bytes;
        uint32_t nbytes;
    } schemas[] = {
#define S(name, text) {name, text, sizeof text - 1}
        S("schema-not-msgpack", "\xc1"),
        S("schema-nil", "\xc0"),
        S("schema-array", "\x92\xa5"
                          "dtype\xa3<i4"),
        S("schema-empty-map", "\x80"),
        S("schema-map-cut", "\x82\xa5"
                            "dtype\xa3<i4"),
        S("schema-map-huge", "\xdf\xff\xff\xff\xff"),
        S("schema-array-huge", "\x82\xa5"
                               "dtype\xa3<i4\xaaitem_shape\xdd\xff\xff\xff\xff"),
        S("schema-string-huge", "\x81\xa5"
                                "dtype\xdb\xff\xff\xff\xff"),
        S("schema-bin-huge", "\x81\xa5"
                             "dtype\xc6\xff\xff\xff\xff"),
        S("schema-trailing", "\x81\xa5"
                             "dtype\xa3<i4\xc0"),
        S("schema-extra-key", "\x82\xa5"
                              "dtype\xa3<i4\xa4size\x01"),
        S("schema-key-twice", "\x82\xa5"
                              "dtype\xa3<i4\xa5"
                              "dtype\xa3<i4"),
        S("schema-int-key", "\x81\x01\xa3<i4"),
        S("schema-dtype-int", "\x81\xa5"
                              "dtype\x04"),
        S("schema-dtype-empty", "\x81\xa5"
                                "dtype\xa0"),
        S("schema-dtype-object", "\x81\xa5"
                                 "dtype\xa2|O"),
        S("schema-dtype-struct", "\x81\xa5"
                                 "dtype\x91\x92\xa1"
                                 "a\xa3<i4"),
        S("schema-dtype-nul", "\x81\xa5"
                              "dtype\xa4<i4\0"),
        S("schema-dtype-zero", "\x81\xa5"
                               "dtype\xa3|S0"),
        S("schema-dtype-datetime", "\x81\xa5"
                                   "dtype\xa8<M8[25s]"),
        S("schema-shape-negative", "\x82\xa5"
                                   "dtype\xa3<i4\xaaitem_shape\x91\xff"),
        S("schema-shape-float", "\x82\xa5"
                                "dtype\xa3<i4\xaaitem_shape\x91\xca\x40\0\0\0"),
        S("schema-shape-zero", "\x82\xa5"
                               "dtype\xa3<i4\xaaitem_shape\x91\0"),
        S("schema-shape-wraps", "\x82\xa5"
                                "dtype\xa3<i4\xaaitem_shape\x92"
                                "\xcf\x80\0\0\0\0\0\0\0\xcf\x80\0\0\0\0\0\0\0"),
        S("schema-shape-nil", "\x82\xa5"
                              "dtype\xa3<i4\xaaitem_shape\xc0"),
        S("schema-ext", "\xd4\1\1"),
        S("schema-nested",
          "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91"
          "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91"
          "\xc0"),
#undef S
    };
    static struct parts p;
    make_dense(&p, ZR_RAW, 3, true);
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++) {
        set_schema(&p, schemas[i].bytes, schemas[i].nbytes);
        save_store(schemas[i].name, &p);
    }
}

/* ---------------------------------------------------------------- .npy */

static void save_npy(const char *name, int version, const char *dict)
{
    static struct bytes x;
    size_t n = strlen(dict) + 1;
    uint8_t head[15] = {0xff,
                        0xff,
                        63,
                        0x93,
                        'N',
                        'U',
                        'M',
                        'P',
                        'Y',
                        (uint8_t)version,
                        0,
                        (uint8_t)n,
                        (uint8_t)(n >> 8)};
    x.n = 0;
    add(&x, head, version == 1 ? 13 : 15);
    add(&x, dict, n - 1);
    add(&x, "\n", 1);
    save("npy", name, &x);
}

static void npy_headers(void)
{
    save_npy("v1", 1, "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 4), }");
    save_npy("v2", 2, "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 4), }");
    save_npy("v3", 3, "{'descr': '<U3', 'fortran_order': True, 'shape': (3,), }");
    save_npy("v4", 4, "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 4), }");
    save_npy("scalar", 1, "{'descr': '>f8', 'fortran_order': False, 'shape': (), }");
    save_npy("empty", 1, "{'descr': '|b1', 'fortran_order': False, 'shape': (0, 5), }");
    save_npy("python-2", 1, "{'shape': (3L,), 'fortran_order': False, 'descr': '<i8'}");
    save_npy("datetime", 1, "{'descr': '<M8[25ns]', 'fortran_order': False, 'shape': (7,), }");
    save_npy("object", 1, "{'descr': '|O', 'fortran_order': False, 'shape': (7,), }");
    save_npy("structured", 1, "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (7,), }");
    save_npy("negative", 1, "{'descr': '<i4', 'fortran_order': False, 'shape': (-7,), }");
    save_npy("wraps", 1,
             "{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, "
             "4294967296, 18446744073709551615), }");
    save_npy("number-too-large", 1,
             "{'descr': '<i4', 'fortran_order': False, 'shape': "
             "(18446744073709551616,), }");
    save_npy("rank-65", 1,
             "{'descr': '<i4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1,1,"
             "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
             "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1), }");
    save_npy("key-twice", 1, "{'descr': '<i4', 'descr': '<i4', 'shape': (7,), }");
    save_npy("key-missing", 1, "{'descr': '<i4', 'shape': (7,), }");
    save_npy("key-unknown", 1, "{'descr': '<i4', 'order': 'C', 'shape': (7,), }");
    save_npy("open-string", 1, "{'descr");
    save_npy("open-dict", 1, "{'descr': '<i4', 'fortran_order': False, 'shape': (7,), ");
    save_npy("escape", 1, "{'descr': '<\\'i4', 'fortran_order': False, 'shape': (7,), }");
    save_npy("text-after", 1, "{'descr': '<i4', 'fortran_order': False, 'shape': (7,), } + 1");
}

/* ---------------------------------------------------------------- requests to a mount */

/* One request of fuzz_mount.c. */
static void add_request(struct bytes *x, uint8_t kind, uint64_t number, const char *text)
{
    add(x, &kind, 1);
    add(x, &number, sizeof number);
    add(x, text, strlen(text));
    add(x, "\n", 1);
}

enum { LOOK_UP, BY_NUMBER, DECODE, SELECT, COMMAND, FORGET };

/* Goes down a path from the root: each name is looked up in what was found last. */
static uint64_t add_path(struct bytes *x, uint64_t found, const char *path)
{
    char name[256];
    for (uint64_t at = 0; *path; at = found++) {
        size_t n = strcspn(path, "/");
        memcpy(name, path, n);
        name[n] = '\0';
        add_request(x, LOOK_UP, at, name);
        path += n + (path[n] == '/');
    }
    return found;
}

static void mount_requests(void)
{
    static const char *const PATHS[] = {"a/image/00000007.npy",
                                        "a/image/.views/all.npy",
                                        "a/image/.views/at/0,5,2.npy",
                                        "a/image/.views/at/0:300:7.npy",
                                        "a/image/.views/epoch/42/00000299.npy",
                                        "a/image/.views/prefetch/0:10",
                                        "a/image/.views/preview/00000003.png",
                                        "a/03/00000003.npy",
                                        "a/image/.control",
                                        ".control",
                                        "b/00000018.npy",
                                        "b/.views/preview/00000000.png",
                                        "a/image/00000002/00000014.npy",
                                        "a/image/.views/epoch/18446744073709551615/00000000.npy"};
    static const char *const COMMANDS[] = {"prefetch 0:10",
                                           "stats reset",
                                           "log error",
                                           "fly",
                                           "prefetch 0:9999999999999999999999",
                                           "  ",
                                           "stats"};
    static const char *const SELECTIONS[] = {":",    "0,5,2", "1:2:3:4", "::1,::1",
                                             "299:", "5:1",   ","};
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        static struct bytes x;
        char name[32];
        x.n = 0;
        add(&x, strstr(PATHS[i], "/00000002/") ? "\1" : "\0", 1); /* with shards */
        uint64_t found = add_path(&x, 1, PATHS[i]);
        add_request(&x, DECODE, found - 1, "");
        add_request(&x, BY_NUMBER, (uint64_t)1 << 61 | i << 32 | 64, "");
        add_request(&x, COMMAND, found - 2, COMMANDS[i % 7]);
        add_request(&x, SELECT, 300, SELECTIONS[i % 7]);
        add_request(&x, FORGET, found - 1, "");
        add_request(&x, DECODE, found - 1, "");
        snprintf(name, sizeof name, "path-%02zu", i);
        save("mount", name, &x);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus FOLDER\n");
        return 2;
    }
    corpus = argv[1];
    must(mkdtemp(work), work);
    sound_stores();
    hostile_headers();
    hostile_schemas();
    npy_headers();
    mount_requests();
    must(!rmdir(work), work);
    return 0;
}
