/* pack_internal.cuh - what the makers of words share. */
#ifndef FORGE_PACK_INTERNAL_CUH
#define FORGE_PACK_INTERNAL_CUH

#include <stdint.h>

#define ROUNDER 12582912.0f /* 1.5 * 2^23: x + it is x rounded, half to even */

/* Exchange the bits m << s of a with the bits m of b. */
static __device__ __forceinline__ void exchange(uint32_t &a, uint32_t &b, int s,
                                                uint32_t m)
{
    uint32_t t = (a >> s ^ b) & m;

    b ^= t;
    a ^= t << s;
}

/* Transpose 8 x 8 nibbles: nibble j of x[r] <-> nibble r of x[j]. */
static __device__ __forceinline__ void transpose_nibbles(uint32_t x[8])
{
#pragma unroll
    for (int r = 0; r < 4; r++)
        exchange(x[r], x[r + 4], 16, 0x0000ffff);
#pragma unroll
    for (int r = 0; r < 8; r += 4) {
        exchange(x[r], x[r + 2], 8, 0x00ff00ff);
        exchange(x[r + 1], x[r + 3], 8, 0x00ff00ff);
    }
#pragma unroll
    for (int r = 0; r < 8; r += 2)
        exchange(x[r], x[r + 1], 4, 0x0f0f0f0f);
}

#endif
