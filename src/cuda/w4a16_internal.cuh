/* w4a16_internal.cuh - what the files of 4-bit products share.
 *
 * Order of the codes.  Inputs have places (w4a16.h), padded to blocks of 64.  A
 * strip is 16 outputs; its blocks follow one another, 512 bytes each: lane l of
 * a warp has words h + 2 j, h < 2, j < 2, of 16 bytes, for the outputs r = l / 4
 * and r + 8 of the strip and the places k..k+3 of the block, k = 32 h + 8 (l %
 * 4) + 4 j.  Its nibbles, from the least:
 *
 *     r: k,  r + 8: k,  r: k + 2,  r + 8: k + 2,  then the same of k + 1 ...
 *
 * So (word >> 4 i) & 0x000f000f is register i of the first operand of
 * mma.m16n8k16, and 16 bytes of a row of x are its second operand for two.
 *
 * meta: per strip, group and output of the strip, a u32: the scale as f32 whose
 * low 4 bits are the zero point.  Scales of f16 and bf16 have zeros there. */
#ifndef FORGE_CUDA_W4A16_INTERNAL_CUH
#define FORGE_CUDA_W4A16_INTERNAL_CUH

#include "cuda/internal.cuh"
#include "forge_w4a16_cuda.h"

extern "C" { /* the library's functions are C's */
#include "w4a16/w4a16.h"
}

enum { W4_SLAB = 128 << 20 }; /* bytes of W for cuBLAS at a time */
enum { W4_STRIP = 16, W4_PLACES = 64, W4_HALF = 32, W4_DEEP = 128 };
/* Warps and outputs of a tile. */
enum { W4_WARPS = 8, W4_ACROSS = W4_WARPS * 2 * W4_STRIP };

struct cuda_w4 {
    struct cuda_context *c;
    struct device_buffer codes, meta;
    struct device_buffer input; /* int32 [depth] input of a place, -1: none;
                                 * cap 0: places are inputs */
    int64_t outputs, inputs;
    int64_t depth;  /* places, a multiple of W4_DEEP */
    int64_t groups; /* in meta */
    int64_t halves; /* W4_HALF places that share a scale, one after another */
    enum forge_w4a16_type scale_type; /* it had */
};

/* Rows of one linear in a launch. */
struct w4_rows {
    const uint4 *codes;
    const uint32_t *meta;
    int64_t first;    /* row of x and y */
    int rows, before; /* tiles of the linears before it */
};

/* A launch on rows of linears of one shape; x has a row's places, 16-aligned. */
struct w4_launch {
    struct w4_rows one;         /* if there is one linear alone, */
    const struct w4_rows *many; /* else [n], on the device */
    int n;
    const void *x;
    void *y;
    int64_t ldx, ldy;
    enum forge_w4a16_type x_type, y_type;
    const float
        *unit; /* [rows] of w4_wgmma(): factors of their sums; or NULL */
    int64_t depth, outputs, groups, halves;
    int64_t rows; /* of x */
    int most; /* of a tile: 8, 16, 32, 64, or w4_few_tile()'s, w4_wgmma_tile()'s */
    int across; /* outputs of a tile */
    bool split; /* scales are not all of x_type; w4_wgmma() takes none of f32 */
    int tiles;
};

/* Rows of a tile for l's linears of `rows` rows on average: 8, 16, 32 or 64, as
 * far as the device has shared memory for them. */
int w4_most(const struct cuda_context *c, const struct w4_launch *l,
            int64_t rows);

/* Queue it. */
int w4_tiled(struct cuda_context *c, struct w4_launch *a, struct err *e);

/* The same by Hopper's instructions for few rows; whether the device has them; the size
 * of a tile, for `rows` rows of a linear, of one alone or on average. */
int w4_few(struct cuda_context *c, const struct w4_launch *l, struct err *e);
bool w4_few_runs(const struct cuda_context *c);
int w4_few_tile(struct cuda_context *c, struct w4_launch *l, int64_t rows,
                bool one, struct err *e);

/* The same by Hopper's instructions, with weights rounded to x's type; whether the
 * device has them; the size of a tile. */
int w4_wgmma(struct cuda_context *c, const struct w4_launch *l, struct err *e);
bool w4_wgmma_runs(const struct cuda_context *c);
void w4_wgmma_tile(struct w4_launch *l);

/* l's rows of bf16 to f16, in c->w4_x, where they may be already, each times a power of
 * two, and l->unit; scales are f16. */
int w4_halves(struct cuda_context *c, struct w4_launch *l, struct err *e);

/* Ways to compute a product: W4_AUTO decides by the number of rows. */
enum w4_way { W4_AUTO, W4_BY_TILES, W4_BY_FEW, W4_BY_WGMMA, W4_BY_BLAS };
int w4_grouped(struct cuda_context *c, const struct cuda_w4 *const *w,
               const int64_t *first, int64_t experts,
               const struct forge_w4a16_rows *x,
               const struct forge_w4a16_rows *y, enum w4_way way,
               struct err *e);

/* ---- numbers, on the device ---- */

/* Codes are added to a power of two whose last bit is worth 1. */
template <class T> struct w4_base;
template <> struct w4_base<__half> {
    typedef __half2 pair;
    static const bool half = true;
    static const uint32_t base = 0x64006400; /* 1024 */
};
template <> struct w4_base<__nv_bfloat16> {
    typedef __nv_bfloat162 pair;
    static const bool half = false;
    static const uint32_t base = 0x43004300; /* 128 */
};

template <class T>
static __device__ __forceinline__ uint32_t w4_less(uint32_t a, uint32_t b)
{
    typedef typename w4_base<T>::pair pair;
    pair d = __hsub2(*(const pair *)&a, *(const pair *)&b);

    return *(const uint32_t *)&d;
}

/* word & 0x000f000f | base, which the compiler makes two instructions of. */
static __device__ __forceinline__ uint32_t w4_masked(uint32_t word,
                                                     uint32_t base)
{
    uint32_t to;

    asm("lop3.b32 %0, %1, %2, %3, 0xea;"
        : "=r"(to)
        : "r"(word), "r"(0x000f000f), "r"(base));
    return to;
}

/* The first operand of mma from a word: codes less zero[row r, row r + 8]. */
template <class T>
static __device__ __forceinline__ void w4_operand(uint32_t a[4], uint32_t word,
                                                  const uint32_t zero[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] =
            w4_less<T>(w4_masked(word >> 4 * i, w4_base<T>::base), zero[i & 1]);
}

/* The group of meta that a half belongs to; halves of a linear are less than
 * 2^16, so that the product is the quotient by `halves`. */
static inline uint32_t w4_inverse(int64_t halves)
{
    return halves > 1 ? (uint32_t)(((1ull << 32) + halves - 1) / halves) : 0;
}

static __device__ __forceinline__ uint32_t w4_group(uint32_t half,
                                                    uint32_t inverse)
{
    return inverse ? __umulhi(half, inverse) : half;
}

/* ---- linears ---- */

/* As forge_w4a16_cuda_prepare() and the two after it. */
int cuda_w4_prepare(struct cuda_context *c, struct cuda_w4 **w,
                    const struct forge_w4a16_linear *l, struct err *e);
void cuda_w4_release(struct cuda_w4 *w);
size_t cuda_w4_memory(const struct cuda_w4 *w);

#endif
