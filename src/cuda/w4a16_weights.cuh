/* w4a16_weights.cuh - codes in shared memory to weights that are first operands of
 * wgmma, whose columns are in the order of x.
 *
 * A weight is (code - zero point) * scale, rounded once to x's type.  The difference is
 * exact.  Scales of the other type of 16 bits are SPLIT: scale = high + low, both in
 * x's type; difference * low is exact, too, and fma adds it to difference * high (but
 * scales of bf16 below 2^-14 are rounded to f16). */
#ifndef FORGE_CUDA_W4A16_WEIGHTS_CUH
#define FORGE_CUDA_W4A16_WEIGHTS_CUH

#include "cuda/w4a16_internal.cuh"

static __device__ __forceinline__ uint32_t load_shared(uint32_t from)
{
    uint32_t v;

    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

static __device__ __forceinline__ uint2 load_shared_8(uint32_t from)
{
    uint2 v;

    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "r"(from)
                 : "memory");
    return v;
}

/* Where lane l's 16 bytes of a block's codes lie in shared memory: neighbours of every
 * other eight lanes change places, so that lanes that each read 8 bytes of one of their
 * row's four meet in no bank. */
static __device__ __forceinline__ int w4_place(int lane)
{
    return lane ^ (lane / 8 & 1);
}

/* How a lane reads codes for operands whose columns are in the order of x: of each 16
 * places it has 2 (l % 4), the next, and 8 behind both, which are in words of two
 * lanes of its rows.  A byte has a place's code in both rows; bytes i and i + 2 of a
 * word, which are neighbours, go together. */
struct order {
    uint32_t at,
        other; /* in shared memory: of the row's first lane, of its second */
    uint32_t bytes; /* selector of __byte_perm() */

    __device__ __forceinline__ order(int lane)
    {
        at = w4_place(lane & ~3) * 16 + lane % 4 / 2 * 8;
        other = at ^ 16;
        bytes = lane & 1 ? 0x7351 : 0x6240;
        /* so that it is not made of the lane anew for each half */
        asm volatile("" : "+r"(bytes));
    }

    /* Words of a strip's block that lies at `codes`. */
    __device__ __forceinline__ void read(uint32_t codes, uint2 (&v)[4]) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = load_shared_8(codes + (i % 2 ? other : at) + i / 2 * 32);
    }

    /* From these, to[half][operand]. */
    __device__ __forceinline__ void arrange(const uint2 (&v)[4],
                                            uint32_t (&to)[2][2]) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to[0][i] = __byte_perm(v[2 * i].x, v[2 * i + 1].x, bytes);
            to[1][i] = __byte_perm(v[2 * i].y, v[2 * i + 1].y, bytes);
        }
    }
};

/* What makes weights of codes of a group: of a lane's two rows w4_base plus the zero
 * point, and the scale, each twice. */
template <class T, bool SPLIT> struct scaling {
    typedef typename w4_base<T>::pair pair;
    uint32_t zero[2];
    pair high[2], low[2];

    /* meta: where that of the lane's first row lies in shared memory. */
    __device__ __forceinline__ void read(uint32_t meta)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t m = load_shared(meta + i * 8 * 4);
            float scale = __uint_as_float(m & ~15u);
            T top = T(scale), rest = T(SPLIT ? scale - (float)top : 0);

            zero[i] = (m & 15) * 0x00010001 + w4_base<T>::base;
            high[i] = { top, top };
            low[i] = { rest, rest };
        }
    }

    /* The first operands of products from a half: its words in order. */
    __device__ __forceinline__ void weights(uint32_t (&to)[2][4],
                                            const uint32_t (&word)[2]) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            w4_operand<T>(to[i], word[i], zero);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            pair q = *(const pair *)&to[i / 4][i % 4];

            q = SPLIT ? __hfma2(q, high[i & 1], __hmul2(q, low[i & 1])) :
                        __hmul2(q, high[i & 1]);
            to[i / 4][i % 4] = *(const uint32_t *)&q;
        }
    }
};

#endif
