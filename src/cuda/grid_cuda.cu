/* grid_cuda.cu - the search of gptq/grid/grid.h on the GPU, equal to the CPU's
 * to the bit.
 *
 * Two passes over each group, which is held in shared memory:
 *
 * 1. A lower bound of every candidate's cost, one candidate per lane, with the
 *    hardware's approximate exp2 and log2.  The error of such a cost is below
 *    EPSILON, relative, plus SLACK per weight: the quotient's 2^-23 for
 *    |x| < 32 steps, times the largest slope of |u|^norm for |u| <= 1/2,
 *    which is 1.
 * 2. The exact cost of the few candidates whose bound is below the best cost,
 *    with the CPU's arithmetic: sixteen lanes, the same order of sums, the same
 *    polynomials, no contraction (_rn intrinsics), scale^norm from a table made
 *    by the host's pow(), scales from quant_grid().
 *
 * The time is that of pass 1: per weight and candidate five arithmetic
 * instructions, two of the special function unit, one for the sum.  log2(scale)
 * is taken in double: no float is closer than 1e-8 to a point where rint(256
 * log2) changes, so the last bit of log2 does not matter. */
#include "cuda/grid_cost.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WARPS = 4,       /* of a block of threads */
    GROUPS = 8,      /* of a warp, at most */
    PAD = 4,         /* floats between groups, to use different banks */
    ROOM = 48 << 10, /* bytes of shared memory, unless one group needs more */
    ROOM_MAX = 200 << 10
};

#define EPSILON 5e-5f
#define SLACK   4e-6f

/* A warp's part of shared memory. */
struct grid_memory {
    float *w, *c;   /* [groups_per_warp][padded + PAD] */
    float *cost;    /* [groups_per_warp][tries] */
    float *lo, *hi; /* [groups_per_warp] */
};

struct grid_try {
    int q, zero;
    bool valid; /* false: there is no such zero (beyond 0..15) */
};

/* quant_meta()'s exponent. */
static __device__ __forceinline__ int exponent(const struct grid_args &a,
                                               float scale, bool *usable)
{
    double l;

    *usable = scale > 0 && isfinite(scale);
    if (!*usable)
        return 0;
    l = rint(log2((double)scale) * 256);
    return l < a.q_low ? a.q_low : l > a.q_high ? a.q_high : (int)l;
}

/* Candidate i of a group, as try_factor() of grid_cpu.c. */
static __device__ __forceinline__ struct grid_try
candidate(const struct grid_args &a, uint32_t i, float lo, float hi)
{
    struct grid_try t = { 0, 8, true };
    double f = a.factors[a.symmetric ? i : i / 3];
    float scale, z;
    bool usable;
    int which = (int)(i % 3);

    if (a.symmetric) {
        scale = (float)(f * 2 * fmaxf(-lo, hi) / 15);
        t.q = exponent(a, scale, &usable);
        return t;
    }
    scale = (float)(f * ((double)hi - lo) / 15);
    t.q = exponent(a, scale, &usable);
    z = rintf(__fdiv_rn((float)(-f * lo), a.scales[t.q & 0xffff]));
    t.zero = z <= 0 ? 0 : z >= 15 ? 15 : (int)z;
    t.valid = which == 0 || (which == 1 ? t.zero > 0 : t.zero < 15);
    t.zero += which == 0 ? 0 : which == 1 ? -1 : 1;
    if (!usable)
        t.zero = 8;
    return t;
}

static __device__ __forceinline__ uint32_t meta_of(const struct grid_args &a,
                                                   struct grid_try t)
{
    return (uint32_t)(t.q & 0xffff) | (uint32_t)t.zero << 16 |
           (a.symmetric ? (uint32_t)QUANT_SYMMETRIC << 24 : 0);
}

/* ---- a warp's groups ---- */

static __device__ struct grid_memory memory_of(const struct grid_args &a,
                                               float *room, int warp)
{
    uint32_t n = a.groups_per_warp, pitch = a.padded + PAD;
    uint32_t each = n * (pitch * (a.importance ? 2 : 1) + a.tries + 2);
    struct grid_memory s;

    each = (each + 3) / 4 * 4;
    s.w = room + warp * each;
    s.c = a.importance ? s.w + n * pitch : NULL;
    s.cost = s.w + n * pitch * (a.importance ? 2 : 1);
    s.lo = s.cost + n * a.tries;
    s.hi = s.lo + n;
    return s;
}

/* Load group number `at` of the matrix as group k of the warp, and set its lo
 * and hi (minimum and maximum, 0 included). */
template <enum dtype T>
static __device__ void load_group(const struct grid_args &a,
                                  const struct grid_memory &s, uint32_t k,
                                  uint64_t at)
{
    uint32_t lane = threadIdx.x % 32, pitch = a.padded + PAD;
    uint64_t row = at / a.n_groups, first = at % a.n_groups * a.group;
    uint64_t left = a.cols - first;
    uint32_t n = left < a.group ? (uint32_t)left : a.group;
    float lo = 0, hi = 0;

    for (uint32_t i = lane; i < a.padded; i += 32) {
        uint64_t from = row * a.cols + first + i;
        float x = i < n ? load_weight<T>(a.w, from) : 0;

        if (!isfinite(x))
            atomicMin(a.bad, (unsigned long long)(a.first + from));
        s.w[k * pitch + i] = x;
        if (s.c)
            s.c[k * pitch + i] = i < n ? a.importance[first + i] : 0;
        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
    for (int d = 16; d; d /= 2) {
        lo = fminf(lo, __shfl_xor_sync(~0u, lo, d));
        hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, d));
    }
    if (lane == 0) {
        s.lo[k] = lo;
        s.hi[k] = hi;
    }
}

/* Pass 1: the lower bounds of all candidates of n groups. */
template <bool SQUARE, bool WEIGHTED>
static __device__ void fast_pass(const struct grid_args &a,
                                 const struct grid_memory &s, uint32_t n)
{
    uint32_t pitch = a.padded + PAD;

    for (uint32_t i = threadIdx.x % 32; i < n * a.tries; i += 32) {
        uint32_t k = i / a.tries;
        struct grid_try t = candidate(a, i % a.tries, s.lo[k], s.hi[k]);
        float scale = a.scales[t.q & 0xffff], weight;
        float cost = fast_cost<SQUARE, WEIGHTED>(
            a, s.w + k * pitch, s.c + k * pitch, scale, t.zero, &weight);

        /* costs are compared as ints: NaN and infinity are the largest */
        cost = (cost * (1 - EPSILON) - SLACK * weight) *
               (float)a.powers[t.q & 0xffff];
        s.cost[i] = t.valid ? cost : __int_as_float(0x7f800000);
    }
}

/* The upper bound of a cost from its lower bound. */
static __device__ __forceinline__ float upper(const struct grid_args &a,
                                              float cost, float slack, int q)
{
    return cost * (1 + 3 * EPSILON) +
           2.001f * slack * (float)a.powers[q & 0xffff];
}

/* Pass 2: the cheapest candidate of group k. */
static __device__ uint32_t choose(const struct grid_args &a,
                                  const struct grid_memory &s, uint32_t k)
{
    uint32_t lane = threadIdx.x % 32, pitch = a.padded + PAD;
    const float *w = s.w + k * pitch, *c = s.c ? s.c + k * pitch : NULL;
    const float *cost = s.cost + k * a.tries;
    float lo = s.lo[k], hi = s.hi[k], slack = 0, bound;
    uint32_t best_meta = 0;
    double best = 0;
    bool any = false;

    for (uint32_t i = lane; i < a.padded; i += 32)
        slack += c ? c[i] : 1;
    for (int d = 16; d; d /= 2)
        slack += __shfl_xor_sync(~0u, slack, d);
    slack *= SLACK;
    bound = __int_as_float(0x7f800000);
    for (uint32_t i = lane; i < a.tries; i += 32) {
        struct grid_try t = candidate(a, i, lo, hi);

        if (t.valid)
            bound = fminf(bound, upper(a, cost[i], slack, t.q));
    }
    for (int d = 16; d; d /= 2)
        bound = fminf(bound, __shfl_xor_sync(~0u, bound, d));

    for (uint32_t at = 0; at < a.tries; at += 32) {
        uint32_t i = at + lane;
        struct grid_try mine = { 0, 8, false };
        unsigned left;

        if (i < a.tries)
            mine = candidate(a, i, lo, hi);
        left = __ballot_sync(~0u, mine.valid && !(cost[i] > bound));
        while (left) {
            int one = __ffs(left) - 1, two, from, q, zero, q1, q2, z1, z2;
            double x, x1, x2;

            left &= left - 1;
            two = left ? __ffs(left) - 1 : one;
            left &= left - 1;
            from = lane < LANES ? one : two;
            q = __shfl_sync(~0u, mine.q, from);
            zero = __shfl_sync(~0u, mine.zero, from);
            x = __dmul_rn(exact_cost(a, w, c, a.scales[q & 0xffff], zero),
                          a.powers[q & 0xffff]);
            x1 = __shfl_sync(~0u, x, 0);
            x2 = __shfl_sync(~0u, x, LANES);
            q1 = __shfl_sync(~0u, q, 0);
            q2 = __shfl_sync(~0u, q, LANES);
            z1 = __shfl_sync(~0u, zero, 0);
            z2 = __shfl_sync(~0u, zero, LANES);
            if (!any || x1 < best) {
                best = x1;
                best_meta = meta_of(a, { q1, z1, true });
            }
            any = true;
            if (x2 < best) {
                best = x2;
                best_meta = meta_of(a, { q2, z2, true });
            }
        }
    }
    return best_meta;
}

/* A warp searches groups_per_warp groups, a block WARPS times as many; the grid
 * covers all groups.  Shared memory: the groups, their importance and a cost
 * per candidate, 30 KiB for groups of 128 and 100 candidates.  Deterministic: a
 * group belongs to one warp, which compares in a fixed order. */
template <enum dtype T, bool SQUARE, bool WEIGHTED>
static __global__ void __launch_bounds__(32 * WARPS)
    grid_search_kernel(const struct grid_args a)
{
    extern __shared__ float4 room[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct grid_memory s = memory_of(a, (float *)room, warp);
    uint64_t first = ((uint64_t)blockIdx.x * WARPS + warp) * a.groups_per_warp;
    uint64_t all = a.rows * a.n_groups;
    uint32_t n = first >= all                    ? 0 :
                 all - first < a.groups_per_warp ? (uint32_t)(all - first) :
                                                   a.groups_per_warp;

    for (uint32_t k = 0; k < n; k++)
        load_group<T>(a, s, k, first + k);
    __syncwarp();
    if (a.tries > 1)
        fast_pass<SQUARE, WEIGHTED>(a, s, n);
    __syncwarp();
    for (uint32_t k = 0; k < n; k++) {
        uint32_t meta;

        if (s.lo[k] == 0 && s.hi[k] == 0)
            meta = meta_of(a, { 0, 8, true });
        else if (a.tries == 1)
            meta = meta_of(a, candidate(a, 0, s.lo[k], s.hi[k]));
        else
            meta = choose(a, s, k);
        if (lane == 0)
            a.meta[first + k] = meta;
    }
}

/* ---- host ---- */

template <enum dtype T>
static int launch(struct cuda_context *c, const struct grid_args *a,
                  size_t room, struct err *e)
{
    void (*kernel)(struct grid_args);
    uint64_t each = (uint64_t)a->groups_per_warp * WARPS;
    uint64_t blocks = (a->rows * a->n_groups + each - 1) / each;

    if (a->norm == 2)
        kernel = a->importance ? grid_search_kernel<T, true, true> :
                                 grid_search_kernel<T, true, false>;
    else
        kernel = a->importance ? grid_search_kernel<T, false, true> :
                                 grid_search_kernel<T, false, false>;
    CUDA_TRY(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room));
    kernel<<<(unsigned)blocks, 32 * WARPS, room, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

static size_t room_of(const struct grid_args *a)
{
    size_t n = a->groups_per_warp;
    size_t each =
        n * ((a->padded + PAD) * (a->importance ? 2 : 1) + a->tries + 2);

    return (each + 3) / 4 * 4 * WARPS * sizeof(float);
}

/* c->powers: scale^norm of every exponent, by the host's pow(). */
static int make_powers(struct cuda_context *c, enum dtype t, double norm,
                       struct err *e)
{
    double *host;
    int rc;

    if (c->powers && c->powers_dtype == t && c->powers_norm == norm)
        return 0;
    if (!c->powers)
        CUDA_TRY(cudaMalloc(&c->powers, Q_COUNT * sizeof(*host)));
    host = (double *)mem_alloc(Q_COUNT * sizeof(*host), "grid", e);
    if (!host)
        return e->code;
    for (uint32_t q = 0; q < Q_COUNT; q++)
        host[q] = pow(quant_grid(q, t).scale, norm);
    rc = cuda_check(cudaMemcpyAsync(c->powers, host, Q_COUNT * sizeof(*host),
                                    cudaMemcpyHostToDevice, c->stream),
                    "cudaMemcpyAsync", e);
    if (!rc)
        rc = cuda_check(cudaStreamSynchronize(c->stream),
                        "cudaStreamSynchronize", e);
    free(host);
    c->powers_dtype = t;
    c->powers_norm = norm;
    return rc;
}

/* The candidates' factors, in the order of grid_cpu.c. */
static int make_factors(struct cuda_context *c, const struct grid_params *p,
                        struct grid_args *a, struct err *e)
{
    double f[GRID_CANDIDATES_MAX], range = GRID_FACTOR_HI - GRID_FACTOR_LO;
    int steps = p->search == GRID_ABSMAX ? 1 : p->candidates;
    int rc = buffer_need(c, &c->steps, sizeof(f), e);

    if (rc < 0)
        return rc;
    for (int i = 0; i < steps; i++)
        f[i] = steps == 1 ? 1 : GRID_FACTOR_HI - range * i / (steps - 1);
    a->steps = (uint32_t)steps;
    a->tries =
        p->symmetric || p->search == GRID_ABSMAX ? a->steps : 3 * a->steps;
    a->factors = (const double *)c->steps.data;
    CUDA_TRY(cudaMemcpyAsync(c->steps.data, f, steps * sizeof(*f),
                             cudaMemcpyHostToDevice, c->stream));
    return 0;
}

int grid_device(struct cuda_context *c, const struct grid_params *p,
                const void *w, const float *importance, uint64_t first,
                uint32_t *meta, struct err *e)
{
    struct grid_args a = {};
    size_t room;
    int rc;

    a.w = w;
    a.importance = importance;
    a.meta = meta;
    a.bad = c->bad;
    a.first = first;
    a.rows = p->rows;
    a.cols = p->cols;
    a.n_groups = quant_groups(p->cols, p->group);
    a.group = (uint32_t)(p->group < p->cols ? p->group : p->cols);
    a.padded = (uint32_t)round_up(a.group, LANES);
    a.norm = (float)p->norm;
    a.symmetric = p->symmetric;
    a.q_low = (int16_t)quant_meta(0x1p-140f, 8, false, 4, p->scale_dtype);
    a.q_high =
        (int16_t)quant_meta(0x1.fffffep127f, 8, false, 4, p->scale_dtype);
    if ((rc = context_scales(c, p->scale_dtype, &a.scales, e)) < 0 ||
        (rc = make_powers(c, p->scale_dtype, p->norm, e)) < 0 ||
        (rc = make_factors(c, p, &a, e)) < 0)
        return rc;
    a.powers = c->powers;
    a.groups_per_warp = GROUPS;
    while (a.groups_per_warp > 1 && room_of(&a) > ROOM)
        a.groups_per_warp /= 2;
    room = room_of(&a);
    if (room > ROOM_MAX)
        return err_set(e, E_CONFIG, "groups of %llu are too large for the GPU",
                       (unsigned long long)p->group);
    return p->dtype == DT_BF16 ? launch<DT_BF16>(c, &a, room, e) :
           p->dtype == DT_F16  ? launch<DT_F16>(c, &a, room, e) :
                                 launch<DT_F32>(c, &a, room, e);
}

/* See internal.cuh. */
int grid_importance(struct cuda_context *c, const struct grid_params *p,
                    struct err *e)
{
    float *x;
    int rc = buffer_need(c, &c->importance, p->cols * sizeof(*x), e);

    if (rc < 0)
        return rc;
    x = (float *)mem_alloc(p->cols * sizeof(*x), "grid", e);
    if (!x)
        return e->code;
    for (uint64_t first = 0; first < p->cols; first += p->group) {
        uint64_t left = p->cols - first;
        uint64_t n = left < p->group ? left : p->group;
        float top = 0;

        for (uint64_t i = first; i < first + n; i++)
            top = p->importance[i] > top ? p->importance[i] : top;
        for (uint64_t i = first; i < first + n; i++)
            x[i] = top > 0 ? p->importance[i] / top : 1;
    }
    rc = cuda_check(cudaMemcpyAsync(c->importance.data, x, p->cols * sizeof(*x),
                                    cudaMemcpyHostToDevice, c->stream),
                    "cudaMemcpyAsync", e);
    free(x);
    return rc;
}

/* Search in slices of rows: the next slice is copied while one is searched. */
static int search_slices(struct cuda_context *c, const struct grid_params *p,
                         const void *w, uint32_t *meta, struct err *e)
{
    uint64_t row = p->cols * dtype_bits(p->dtype) / 8;
    uint64_t groups = quant_groups(p->cols, p->group);
    uint64_t most = slice_of(c) / row + 1;
    const float *importance =
        p->importance ? (const float *)c->importance.data : NULL;
    int rc;

    most = most < p->rows ? most : p->rows;
    for (uint64_t r = 0; r < p->rows; r += most) {
        uint64_t n = p->rows - r < most ? p->rows - r : most;
        const struct weight_rows rows = { w, p->fp8, p->dtype, p->cols, r, n };
        struct grid_params part = *p;

        part.rows = n;
        if ((rc = bring_weight(c, &rows, e)) < 0 ||
            (rc = grid_device(c, &part, c->weight.data, importance, r * p->cols,
                              (uint32_t *)c->meta.data + r * groups, e)) < 0)
            return rc;
    }
    return download(c, meta, c->meta.data, p->rows * groups * sizeof(*meta), e);
}

int cuda_grid(struct cuda_context *c, const struct grid_params *p,
              const void *w, uint32_t *meta, struct err *e)
{
    uint64_t out = p->rows * quant_groups(p->cols, p->group) * sizeof(*meta);
    unsigned long long bad;
    int rc;

    if (p->dtype != DT_BF16 && p->dtype != DT_F16 && p->dtype != DT_F32)
        return err_set(e, E_CONFIG, "the GPU takes no %s weights",
                       dtype_name(p->dtype));
    if ((rc = buffer_need(c, &c->meta, out, e)) < 0 ||
        (p->importance && (rc = grid_importance(c, p, e)) < 0))
        return rc;
    CUDA_TRY(cudaMemsetAsync(c->bad, 0xff, sizeof(bad), c->stream));
    if ((rc = search_slices(c, p, w, meta, e)) < 0)
        return rc;
    CUDA_TRY(cudaMemcpyAsync(&bad, c->bad, sizeof(bad), cudaMemcpyDeviceToHost,
                             c->stream));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    if (bad != ~0ull)
        return err_set(e, E_DATA, "row %llu: input %llu is not finite",
                       (unsigned long long)(bad / p->cols),
                       (unsigned long long)(bad % p->cols));
    return 0;
}
