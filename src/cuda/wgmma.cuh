/* wgmma.cuh - Hopper's asynchronous PTX instructions (sm_90a only), one function
 * each: barriers in shared memory that count bytes, copies of tiles of a tensor,
 * and products of a warp group (4 warps, the first at a multiple of 4).
 *
 * Tiles are panels of 64 columns of bf16, so rows of 128 bytes, with a swizzle of
 * 128 bytes: of row r, 16-byte chunk c lies at chunk c ^ (r % 8).  A panel begins
 * at a multiple of 1,024 bytes. */
#ifndef FORGE_CUDA_WGMMA_CUH
#define FORGE_CUDA_WGMMA_CUH

#include <cuda.h>
#include <stdint.h>

/* A barrier (8 bytes at `at`) whose phases end after n arrivals, and after all
 * bytes that were announced have arrived. */
static __device__ __forceinline__ void barrier_init(uint32_t at, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n)
                 : "memory");
}

/* Make barriers known to the copy engine; before a __syncthreads(). */
static __device__ __forceinline__ void barriers_made(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at)
                 : "memory");
}

/* Arrive, and announce bytes. */
static __device__ __forceinline__ void barrier_expect(uint32_t at, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at),
        "r"(bytes)
        : "memory");
}

/* Wait for the end of the phase of that parity; of a new barrier the phase
 * before its first, of parity 1, has ended. */
static __device__ __forceinline__ void barrier_wait(uint32_t at, int parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* Start the copy of map's box at (column, head, row) to shared memory; its
 * arrival is counted at the barrier. */
static __device__ __forceinline__ void copy_box(uint32_t to,
                                                const CUtensorMap *map,
                                                uint32_t barrier, int column,
                                                int head, int row)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
                 "[%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(row)
                 : "memory");
}

/* Arrive once this thread's copies so far (copy_16() of mma.cuh) have. */
static __device__ __forceinline__ void barrier_copies(uint32_t at)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at)
        : "memory");
}

/* The same to the same place of both blocks of threads of a cluster, whose barriers
 * there both count it. */
static __device__ __forceinline__ void
copy_box_to_both(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                 int column, int head, int row)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(row),
                 "h"((uint16_t)3)
                 : "memory");
}

/* Arrive at the barrier that block of threads `rank` of the cluster has at `at`: what
 * this thread read before, it has read; what it wrote may not be seen there. */
static __device__ __forceinline__ void barrier_arrive_at(uint32_t at, int rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(at),
                 "r"(rank)
                 : "memory");
}

/* Wait for all threads of the cluster. */
static __device__ __forceinline__ void cluster_meet(void)
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/* The block of threads' place in its cluster. */
static __device__ __forceinline__ int cluster_rank(void)
{
    int rank;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

static __device__ __forceinline__ int cluster_size(void)
{
    int n;

    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}

/* What block of threads `rank` of the cluster has at `at`; between two cluster_meet(). */
static __device__ __forceinline__ float4 load_from(uint32_t at, int rank)
{
    float4 v;

    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
                 "}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at), "r"(rank)
                 : "memory");
    return v;
}

/* Make a map that the host has copied to the device's memory known to this
 * thread's copies; before the first of them. */
static __device__ __forceinline__ void map_copied(const CUtensorMap *map)
{
    asm volatile(
        "fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map)
        : "memory");
}

/* Order this thread's stores to shared memory before what products and copies
 * will do there; before a barrier. */
static __device__ __forceinline__ void stores_made(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Store four 8 x 8 matrices of 16 bits, transposed: what load_transposed() of
 * mma.cuh loads. */
static __device__ __forceinline__ void store_transposed(uint32_t to,
                                                        const uint32_t r[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], "
                 "{%1, %2, %3, %4};" ::"r"(to),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* Named barrier of so many threads: wait at it, or only arrive. */
static __device__ __forceinline__ void meet(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void announce(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Of a warp group: registers per thread from here on. */
template <int N> static __device__ __forceinline__ void registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products ---- */

/* Descriptor of an operand in shared memory.  K-major (rows of a panel are rows
 * of A or columns of B): stride = bytes between groups of 8 rows.  MN-major (rows
 * of a panel are A's columns or B's rows): stride the same, leading = bytes between
 * panels.  Adding bytes / 16 moves it. */
static __device__ __forceinline__ uint64_t operand(uint32_t at, int leading,
                                                   int stride)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | 1ull << 62;
}

/* The same for the operand n times 16 bytes behind d's.  Descriptors are taken from a
 * warp's uniform registers: by the shuffle the compiler knows this one to be uniform, and
 * what is added to it. */
static __device__ __forceinline__ uint64_t operand_behind(uint64_t d,
                                                          uint32_t n)
{
    return (d & ~0xffffffffull) | __shfl_sync(~0u, (uint32_t)d + n, 0);
}

/* Before products, after registers that they read or write were touched. */
static __device__ __forceinline__ void products_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all but the last N groups have ended. */
template <int N> static __device__ __forceinline__ void products_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keep the compiler from moving what reads or writes x across this point. */
template <int N> static __device__ __forceinline__ void hold(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

template <int N> static __device__ __forceinline__ void hold(uint32_t (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(x[i])::"memory");
}

#define WG_4(d, i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WG_16(d, i) WG_4(d, i), WG_4(d, i + 4), WG_4(d, i + 8), WG_4(d, i + 12)
#define WG_32(d, i) WG_16(d, i), WG_16(d, i + 16)
#define WG_64(d, i) WG_32(d, i), WG_32(d, i + 32)
#define WG_NAMES_8  "%0, %1, %2, %3, %4, %5, %6, %7"
#define WG_NAMES_16 WG_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WG_NAMES_32                                                            \
    WG_NAMES_16                                                                \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
    "%30, %31"
#define WG_NAMES_64                                                            \
    WG_NAMES_32                                                                \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, "      \
    "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "   \
    "%59, %60, %61, %62, %63"
#define WG_NAMES_96                                                            \
    WG_NAMES_64                                                                \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "      \
    "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, "   \
    "%91, %92, %93, %94, %95"
#define WG_NAMES_128                                                           \
    WG_NAMES_64                                                                \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "      \
    "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, "   \
    "%91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, "    \
    "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, "       \
    "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "       \
    "%126, %127"

/* d[64, 128] = a[64, 16] b[16, 128], or += with `more`; a and b K-major.  Of d a
 * thread holds, in rows 16 warp + lane / 4 (i % 4 < 2) and 8 below, columns
 * i / 4 * 8 + 2 (lane % 4) + i % 2. */
static __device__ __forceinline__ void
group_multiply(float (&d)[64], uint64_t a, uint64_t b, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" WG_NAMES_64 "}, %64, %65, more, 1, 1, 0, 0;\n}"
                 : WG_32(d, 0), WG_32(d, 32)
                 : "l"(a), "l"(b), "r"((int)more));
}

/* d[64, 128] += a[64, 16] b[16, 128]; b MN-major.  Of a a thread holds, in the
 * rows that it has of d, columns 2 (lane % 4) and the next: a[0], 8 rows below:
 * a[1], 8 columns on: a[2] and a[3]. */
static __device__ __forceinline__ void
group_multiply(float (&d)[64], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" WG_NAMES_64 "}, {%64, %65, %66, %67}, %68, more, 1, 1, "
                 "1;\n}"
                 : WG_32(d, 0), WG_32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1));
}

/* The same for d[64, 64]. */
static __device__ __forceinline__ void
group_multiply(float (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" WG_NAMES_32 "}, {%32, %33, %34, %35}, %36, more, 1, 1, "
                 "1;\n}"
                 : WG_32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1));
}

/* d[64, N] = a[64, 16] b[16, N], or += with `more`, for N = 256, 192, 128, 64, 32 or
 * 16, of D * 2 columns that d has room for; a as above, b K-major; both of bf16 or,
 * HALF, of f16. */
template <bool HALF, int N, int D>
static __device__ __forceinline__ void
group_multiply_across(float (&d)[D], const uint32_t (&a)[4], uint64_t b,
                      bool more)
{
#define WG_ACROSS_AS(type, n, names, a0, b0, m0, ...)                          \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " m0 ", 0;\n"         \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type         \
                 "." type " {" names "}, {" a0 "}, " b0 ", more, 1, 1, 0;\n}"  \
                 : __VA_ARGS__                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),         \
                   "r"((int)more))
#define WG_ACROSS(...)                                                         \
    do {                                                                       \
        if (HALF)                                                              \
            WG_ACROSS_AS("f16", __VA_ARGS__);                                  \
        else                                                                   \
            WG_ACROSS_AS("bf16", __VA_ARGS__);                                 \
    } while (0)
    static_assert(N <= 2 * D, "d has no room");
    if constexpr (N == 256)
        WG_ACROSS("256", WG_NAMES_128, "%128, %129, %130, %131", "%132", "%133",
                  WG_64(d, 0), WG_64(d, 64));
    else if constexpr (N == 192)
        WG_ACROSS("192", WG_NAMES_96, "%96, %97, %98, %99", "%100", "%101",
                  WG_64(d, 0), WG_32(d, 64));
    else if constexpr (N == 128)
        WG_ACROSS("128", WG_NAMES_64, "%64, %65, %66, %67", "%68", "%69",
                  WG_64(d, 0));
    else if constexpr (N == 64)
        WG_ACROSS("64", WG_NAMES_32, "%32, %33, %34, %35", "%36", "%37",
                  WG_32(d, 0));
    else if constexpr (N == 32)
        WG_ACROSS("32", WG_NAMES_16, "%16, %17, %18, %19", "%20", "%21",
                  WG_16(d, 0));
    else
        WG_ACROSS("16", WG_NAMES_8, "%8, %9, %10, %11", "%12", "%13",
                  WG_4(d, 0), WG_4(d, 4));
    static_assert(N == 256 || N == 192 || N == 128 || N == 64 || N == 32 ||
                      N == 16,
                  "no such product");
}

/* d[64, N] += a[64, 16] b[16, N] for N = 256, or 128 of the 256 columns that d has
 * room for; a and b MN-major. */
template <int N>
static __device__ __forceinline__ void
group_multiply_turned(float (&d)[128], uint64_t a, uint64_t b)
{
    static_assert(N == 256 || N == 128, "no such product");
    if (N == 256)
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %130, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                     "{" WG_NAMES_128 "}, %128, %129, more, 1, 1, 1, 1;\n}"
                     : WG_64(d, 0), WG_64(d, 64)
                     : "l"(a), "l"(b), "n"(1));
    else
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                     "{" WG_NAMES_64 "}, %64, %65, more, 1, 1, 1, 1;\n}"
                     : WG_64(d, 0)
                     : "l"(a), "l"(b), "n"(1));
}

#endif
