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

static __device__ __forceinline__ uint4 load_shared_16(uint32_t from)
{
    uint4 v;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* How a lane exchanges codes with the three others of its rows: selectors of
 * __byte_perm(). */
struct order {
    uint32_t upper; /* the first word in the upper two lanes, else the second */
    uint32_t away, first, second; /* bytes to send; those of the operands */

    __device__ __forceinline__ order(int lane)
    {
        upper = lane & 2 ? 0x3210 : 0x7654;
        away = lane & 1 ? 0x6420 : 0x7531;
        first = lane & 1 ? 0x3514 : 0x5240;
        second = lane & 1 ? 0x3716 : 0x7260;
        /* so that they are not made of the lane anew for each half */
        asm volatile("" : "+r"(upper), "+r"(away), "+r"(first), "+r"(second));
    }

    /* Words of a half, 8 places of a lane, to those of two operands whose places
     * are in order: 2 (l % 4), the next, and 8 behind both.  A byte has a place's
     * code in both rows; bytes i and i + 2 of a word, which are neighbours, go
     * together.  First the upper two lanes change a word with the lower ones, then
     * neighbours two bytes of each. */
    __device__ __forceinline__ void operator()(uint32_t a, uint32_t b,
                                               uint32_t to[2]) const
    {
        uint32_t come = __shfl_xor_sync(~0u, __byte_perm(a, b, upper), 2);

        a = __byte_perm(come, a, upper);
        b = __byte_perm(b, come, upper);
        come = __shfl_xor_sync(~0u, __byte_perm(a, b, away), 1);
        to[0] = __byte_perm(a, come, first);
        to[1] = __byte_perm(b, come, second);
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
