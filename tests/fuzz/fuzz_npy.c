/* SPDX-License-Identifier: MIT
 *
 * Hostile .npy headers.  The first two bytes of an input say how much of the
 * file the parser gets to see (0xffff: all) and the next one how much larger
 * than the rest the file claims to be; then the file.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "zrecord.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t nbytes);

static void require(int holds)
{
    if (!holds)
        abort();
}

/* What was parsed can be written, and reads back as the same. */
static void round_trip(const struct zr_npy *npy)
{
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    struct zr_npy again;
    size_t n = zr_npy_header(npy->dtype, npy->ndim, npy->shape, header);
    require(n <= sizeof header && n % 64 == 0);
    require(zr_npy_parse(header, n, n + npy->data_nbytes, "again", &again, NULL) == ZR_OK);
    require(again.data_off == n && again.data_nbytes == npy->data_nbytes);
    require(again.itemsize == npy->itemsize && again.ndim == npy->ndim);
    require(!strcmp(again.dtype, npy->dtype));
    require(!memcmp(again.shape, npy->shape, npy->ndim * sizeof *npy->shape));
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t nbytes)
{
    if (nbytes < 3)
        return 0;
    size_t seen = input[0] | (size_t)input[1] << 8;
    uint64_t file_nbytes = nbytes - 3 + (input[2] < 64 ? input[2] : (uint64_t)1 << (input[2] % 63));
    if (seen > nbytes - 3)
        seen = nbytes - 3;
    uint8_t *head = malloc(seen ? seen : 1); /* exactly as long: a read past it is seen */
    struct zr_npy npy = {0};
    struct zr_error err = {0};
    memcpy(head, input + 3, seen);
    int rc = zr_npy_parse(head, seen, file_nbytes, "a\nb", &npy, &err);
    free(head);
    if (rc == ZR_E_BUFFER) {
        require(npy.data_off > seen);
    } else if (rc) {
        require(err.code == rc && err.message[0] && !strchr(err.message, '\n'));
    } else {
        require(npy.ndim <= ZR_MAX_NDIM && npy.data_off + npy.data_nbytes <= file_nbytes);
        round_trip(&npy);
    }
    return 0;
}
