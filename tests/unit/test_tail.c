/* SPDX-License-Identifier: MIT
 * tail.c: every byte at its place, whatever the pieces and threads; whole
 * blocks only. */
#include "support.h"

#define BLOCK ZRI_TAIL_BLOCK_NBYTES

static struct zri_tail tail;
static const char *path;

static void setup_tail(void)
{
    path = at("file");
    zri_tail_init(&tail);
    tail.fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0666);
    ck_assert_int_ge(tail.fd, 0);
}

static void end_tail(void)
{
    close(tail.fd);
    zri_tail_release(&tail);
}

/* Byte i of the file. */
static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 31 + (i >> 13));
}

static uint8_t *stream(uint64_t nbytes)
{
    uint8_t *bytes = malloc(nbytes + 1);
    for (uint64_t i = 0; i < nbytes; i++)
        bytes[i] = byte_at(i);
    return bytes;
}

static void expect_stream(uint64_t nbytes)
{
    size_t found;
    uint8_t *bytes = slurp(path, &found);
    ck_assert_uint_eq(found, nbytes);
    for (uint64_t i = 0; i < nbytes; i++)
        if (bytes[i] != byte_at(i))
            ck_abort_msg("byte %" PRIu64 " differs", i);
    free(bytes);
}

START_TEST(test_pieces_of_any_size)
{
    static const uint64_t pieces[] = {0,     1,         4095,      BLOCK - 4096,
                                      BLOCK, 1,         BLOCK - 1, 3 * BLOCK + 7,
                                      0,     BLOCK - 7, 2 * BLOCK, 12345};
    setup_tail();
    uint64_t at_off = 0, total = 0;
    for (size_t k = 0; k < COUNT(pieces); k++)
        total += pieces[k];
    uint8_t *bytes = stream(total);
    for (size_t k = 0; k < COUNT(pieces); k++) {
        uint64_t off = UINT64_MAX;
        ck_assert_int_eq(zri_tail_append(&tail, bytes + at_off, pieces[k], &off), 0);
        ck_assert_uint_eq(off, at_off);
        at_off += pieces[k];
        /* What is not a whole block waits. */
        ck_assert_uint_eq(file_nbytes(path), at_off / BLOCK * BLOCK);
    }
    ck_assert_int_eq(zri_tail_flush(&tail), 0);
    expect_stream(total);
    free(bytes);
    end_tail();
}
END_TEST

START_TEST(test_blocks_of_the_caller)
{
    setup_tail();
    uint8_t *bytes = stream(4 * BLOCK);
    ck_assert_uint_eq(zri_tail_room(&tail), 0);
    ck_assert_int_eq(zri_tail_append(&tail, bytes, 100, NULL), 0);
    uint64_t room = zri_tail_room(&tail);
    ck_assert_uint_eq(room, BLOCK - 100);
    ck_assert_int_eq(zri_tail_append(&tail, bytes + 100, room, NULL), 0);
    ck_assert_uint_eq(zri_tail_reserve(&tail, 2), BLOCK);
    ck_assert_int_eq(zri_write_full(tail.fd, bytes + BLOCK, 2 * BLOCK, BLOCK), 0);
    ck_assert_int_eq(zri_tail_append(&tail, bytes + 3 * BLOCK, 5, NULL), 0);
    ck_assert_int_eq(zri_tail_flush(&tail), 0);
    expect_stream(3 * BLOCK + 5);
    free(bytes);
    end_tail();
}
END_TEST

/* ---------------------------------------------------------------- threads */

#define THREADS 4
#define PIECES 200

struct piece {
    uint64_t off, nbytes, seed;
};
static struct piece written[THREADS][PIECES];

static void *append_pieces(void *arg)
{
    struct piece *mine = arg;
    uint64_t state = (uint64_t)(mine - written[0]) + 1;
    uint8_t *bytes = malloc(3 * BLOCK);
    for (size_t k = 0; k < PIECES; k++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        struct piece p = {.seed = state >> 33,
                          .nbytes = (state >> 40) % (k % 50 ? 70000 : 3 * BLOCK)};
        for (uint64_t i = 0; i < p.nbytes; i++)
            bytes[i] = byte_at(p.seed + i);
        ck_assert_int_eq(zri_tail_append(&tail, bytes, p.nbytes, &p.off), 0);
        mine[k] = p;
    }
    free(bytes);
    return NULL;
}

START_TEST(test_threads)
{
    setup_tail();
    pthread_t threads[THREADS];
    for (size_t t = 0; t < THREADS; t++)
        ck_assert_int_eq(pthread_create(&threads[t], NULL, append_pieces, written[t]), 0);
    for (size_t t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    ck_assert_int_eq(zri_tail_flush(&tail), 0);
    size_t found;
    uint64_t total = 0;
    uint8_t *bytes = slurp(path, &found);
    for (size_t k = 0; k < THREADS * PIECES; k++) {
        const struct piece *p = &written[k / PIECES][k % PIECES];
        total += p->nbytes;
        ck_assert_uint_le(p->off + p->nbytes, found);
        for (uint64_t i = 0; i < p->nbytes; i++)
            if (bytes[p->off + i] != byte_at(p->seed + i))
                ck_abort_msg("piece %zu differs at byte %" PRIu64, k, i);
    }
    ck_assert_uint_eq(found, total);
    free(bytes);
    end_tail();
}
END_TEST

/* ---------------------------------------------------------------- failure */

START_TEST(test_a_failed_write_is_told)
{
    setup_tail();
    uint8_t *bytes = stream(BLOCK + 10);
    int writable = tail.fd;
    tail.fd = open(path, O_RDONLY);
    ck_assert_int_eq(zri_tail_append(&tail, bytes, 10, NULL), 0);
    ck_assert_int_eq(zri_tail_append(&tail, bytes, BLOCK, NULL), EBADF);
    ck_assert_int_eq(zri_tail_append(&tail, bytes, 2, NULL), 0); /* other tasks go on */
    ck_assert_int_eq(zri_tail_flush(&tail), EBADF);
    close(writable);
    free(bytes);
    end_tail();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_pieces_of_any_size, test_blocks_of_the_caller, test_threads,
                                  test_a_failed_write_is_told};
    return run_tests("tail", tests, COUNT(tests), 60);
}
