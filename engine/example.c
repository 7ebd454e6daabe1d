/* SPDX-License-Identifier: MIT
 *
 * The library from C or C++: makes a store, gathers a batch of it, reports an error.
 *
 *     cc example.c $(pkg-config --cflags --libs zrecord) && ./a.out store
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zrecord.h>

#define ROW_LENGTH 4

/* 1000 rows of 4 floats, appended one by one; any number at a time is better. */
static int write_store(const char *path, struct zr_error *err)
{
    const uint64_t shape[] = {ROW_LENGTH};
    struct zr_writer_options options;
    struct zr_writer *writer;

    memset(&options, 0, sizeof options); /* zero means the default */
    options.geometry = ZR_DENSE;
    options.codec = ZR_ZSTD;
    options.dtype = "<f4";
    options.ndim = 1;
    options.item_shape = shape;
    int code = zr_writer_create(&writer, path, &options, err);
    for (int i = 0; i < 1000 && code == ZR_OK; i++) {
        const float row[ROW_LENGTH] = {i + 0.f, i + 0.25f, i + 0.5f, i + 0.75f};
        code = zr_writer_append_dense(writer, row, 1, err);
    }
    if (code == ZR_OK)
        return zr_writer_close(writer, err); /* only now is there a store */
    zr_writer_abort(writer);
    return code;
}

static int print_batch(const char *path, const uint64_t *ids, size_t count, struct zr_error *err)
{
    struct zr_reader *reader;
    int code = zr_reader_open(&reader, path, NULL, err);
    size_t nbytes = count * ROW_LENGTH * sizeof(float);
    float *rows = (float *)zr_buffer_alloc(nbytes); /* or any memory of yours */

    if (code == ZR_OK)
        code = zr_gather_dense(reader, ids, count, rows, nbytes, err);
    for (size_t i = 0; i < count && code == ZR_OK; i++)
        printf("record %" PRIu64 ": %g .. %g\n", ids[i], rows[i * ROW_LENGTH],
               rows[i * ROW_LENGTH + ROW_LENGTH - 1]);
    zr_buffer_free(rows);
    zr_reader_close(reader);
    return code;
}

int main(int argc, char **argv)
{
    const uint64_t ids[] = {42, 7, 42}, too_far[] = {1000};
    const char *path = argc > 1 ? argv[1] : "store";
    struct zr_error err;

    if (write_store(path, &err) != ZR_OK || print_batch(path, ids, 3, &err) != ZR_OK) {
        fprintf(stderr, "%s\n", err.message); /* names the file, the record and the reason */
        return 1;
    }
    if (print_batch(path, too_far, 1, &err) != ZR_OK)
        printf("as expected: %s (%s)\n", err.message, zr_code_name(err.code));
    return 0;
}
