/* mma.cuh - the PTX instructions of a bf16 or f16 product on tensor cores (sm_80
 * and later) and around it, one function each. */
#ifndef FORGE_CUDA_MMA_CUH
#define FORGE_CUDA_MMA_CUH

#include <stdint.h>

/* p, in shared memory, as the 32-bit address that these instructions take. */
static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 2^x, approximately. */
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two bf16 in a register. */
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    uint32_t r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Start an asynchronous copy of 16 bytes from global to shared memory; there ==
 * false: fill with zeros. */
static __device__ __forceinline__ void copy_16(uint32_t to, const void *from,
                                               bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

/* End a group of copies: all since the last copy_commit(). */
static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until all but the last N groups of this thread have arrived. */
template <int N> static __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Load four 8 x 8 matrices of bf16, transposed.  Lane l of the warp passes the
 * address of row l % 8 of matrix l / 8, and gets, of each matrix, rows 2 (l %
 * 4) and 2 (l % 4) + 1 of column l / 4. */
static __device__ __forceinline__ void load_transposed(uint32_t r[4],
                                                       uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* The same without transposition: lane l gets, of each matrix, columns 2 (l %
 * 4) and 2 (l % 4) + 1 of row l / 4. */
static __device__ __forceinline__ void load_matrices(uint32_t r[4],
                                                     uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* d[16, 8] += a[16, 16] b[16, 8].  Of d lane l holds columns 2 (l % 4) and
 * 2 (l % 4) + 1 in rows l / 4 (d[0], d[1]) and l / 4 + 8 (d[2], d[3]). */
static __device__ __forceinline__ void multiply(float d[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
                   "r"(b[1]));
}

/* The same of f16. */
static __device__ __forceinline__ void
multiply_half(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
                   "r"(b[1]));
}

#endif
