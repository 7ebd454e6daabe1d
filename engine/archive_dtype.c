/* SPDX-License-Identifier: MIT
 *
 * The dtypes of archives: torch's name, the dtype.str of NumPy's, bytes of an element.
 */
#include "archive.h"

static const struct zri_dtype dtypes[] = {
    {"torch.float32", "<f4", 4},         {"torch.float64", "<f8", 8},
    {"torch.float16", "<f2", 2},         {"torch.bfloat16", "<V2", 2},
    {"torch.int64", "<i8", 8},           {"torch.int32", "<i4", 4},
    {"torch.int16", "<i2", 2},           {"torch.int8", "|i1", 1},
    {"torch.uint8", "|u1", 1},           {"torch.bool", "|b1", 1},
    {"torch.uint16", "<u2", 2},          {"torch.uint32", "<u4", 4},
    {"torch.uint64", "<u8", 8},          {"torch.complex64", "<c8", 8},
    {"torch.complex128", "<c16", 16},    {"torch.complex32", "|V4", 4},
    {"torch.float8_e4m3fn", "|V1", 1},   {"torch.float8_e5m2", "|V1", 1},
    {"torch.float8_e4m3fnuz", "|V1", 1}, {"torch.float8_e5m2fnuz", "|V1", 1},
    {"torch.float8_e8m0fnu", "|V1", 1},  {"torch.float4_e2m1fn_x2", "|V1", 1},
};

const struct zri_dtype *zri_torch_dtype(const char *name, size_t nbytes)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strlen(dtypes[i].torch_name) == nbytes && !memcmp(dtypes[i].torch_name, name, nbytes))
            return &dtypes[i];
    return NULL;
}
