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

/* A tile of ROWS outputs x WORDS words of eight inputs, for ROWS / EACH * WORDS
 * threads: its words in shared memory, columns padded to use different banks. */
enum { WORDS = 16, EACH = 8 };
template <int ROWS> struct pack_tile {
    enum { PITCH = ROWS + ROWS / 8 + 32 / WORDS };
    uint32_t word[WORDS * PITCH];

    __device__ __forceinline__ uint32_t &at(int k, int r)
    {
        return word[k * PITCH + r + r / 8];
    }
};

/* a.out[8 word + i][a.rows / 8], of a tile whose first row is r0 and first word w0
 * of a.words: a thread transposes eight words; what a warp writes at once is
 * contiguous. */
template <class ARGS, int ROWS>
static __device__ __forceinline__ void
store_awq(const ARGS &a, pack_tile<ROWS> &tile, uint64_t r0, uint64_t w0)
{
    static const int order[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };
    int block = threadIdx.x % (ROWS / 8), k = threadIdx.x / (ROWS / 8);
    uint32_t across = (uint32_t)(a.rows / 8);
    uint32_t *to = a.out + 8 * (w0 + k) * across + r0 / 8 + block;
    uint32_t x[8];

    if (r0 / 8 + block >= across || w0 + k >= a.words)
        return;
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = tile.at(k, 8 * block + order[i]);
    transpose_nibbles(x);
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i * across] = x[i];
}

/* a.out[word][a.rows] */
template <class ARGS, int ROWS>
static __device__ __forceinline__ void
store_gptq(const ARGS &a, pack_tile<ROWS> &tile, uint64_t r0, uint64_t w0)
{
    int y = (int)threadIdx.x % ROWS, first = (int)threadIdx.x / ROWS * EACH;

    if (r0 + y >= a.rows)
        return;
#pragma unroll
    for (int k = first; k < first + EACH; k++)
        if (w0 + k < a.words)
            a.out[(w0 + k) * a.rows + r0 + y] = tile.at(k, y);
}

#endif
