/* SPDX-License-Identifier: MIT
 *
 * The part of the FUSE protocol that carries requests over io_uring, as
 * <linux/fuse.h> has it since Linux 6.14; headers of distributions are older.
 */
#ifndef ZRECORDFS_FUSE_URING_H
#define ZRECORDFS_FUSE_URING_H

#include <stdint.h>

/* Bit 41 of INIT's flags, as it lies in flags2. */
#define FUSE_URING_INIT_FLAG2 (UINT32_C(1) << (41 - 32))

enum {
    FUSE_URING_HEADER_NBYTES = 128,  /* room for struct fuse_in_header or fuse_out_header */
    FUSE_URING_OP_NBYTES = 128,      /* room for the first argument of an opcode */
    FUSE_URING_MIN_PAYLOAD = 8192,   /* FUSE_MIN_READ_BUFFER */
    FUSE_URING_REGISTER = 1,         /* commands in the SQE: offer an entry ... */
    FUSE_URING_COMMIT_AND_FETCH = 2, /* ... answer, and offer the entry again */
    FUSE_URING_IOVECS = 2            /* what REGISTER points at: header and payload */
};

struct fuse_uring_in_out {
    uint64_t flags;
    uint64_t commit_id;      /* to be given back with the answer */
    uint32_t payload_nbytes; /* of the request, then of the answer */
    uint32_t padding;
    uint64_t reserved;
};

/* What the kernel fills for a request and reads for an answer, beside the payload. */
struct fuse_uring_header {
    char in_out[FUSE_URING_HEADER_NBYTES];
    char op_in[FUSE_URING_OP_NBYTES];
    struct fuse_uring_in_out entry;
};

/* In the command area of the SQE. */
struct fuse_uring_command {
    uint64_t flags;
    uint64_t commit_id;
    uint16_t queue;
    uint8_t padding[6];
};

#endif
