/* fisher_group_cuda.cu - the codes of a group of columns, all rows, as
 * refined_fisher_cuda.cu says: a block of threads for each 64 rows of a module. */
#include "cuda/fisher_internal.cuh"

enum {
    WIDE = REFINED_WIDE,
    ROWS = FISHER_ROWS,
    THREADS = 512,
    WARP = 32,
    PARTS = WIDE / WARP,   /* columns of a lane: PARTS * lane and on */
    STRIDE = WIDE + PARTS, /* of rows of g */
    STEP = 8,              /* rows that move at a time, a warp for each */
    STEPS = ROWS / STEP,   /* and that are published at a time */
    PUBLISHER = THREADS / WARP - 1, /* the warp that does */
    BRINGERS = PUBLISHER - STEP,    /* warps that bring rows up to date */
    SIDES = THREADS / WIDE,         /* threads of a column of G */
    OWN = ROWS / SIDES              /* rows of one of them */
};

/* Of the rows in the order in which they move, see place(). */
struct fisher_memory {
    float h[WIDE][WIDE];
    float g[ROWS][STRIDE];
    float f[ROWS][ROWS];
    float before[2][ROWS][ROWS]; /* F, rows before and these, in their order */
    float v[2][STEP][WIDE];
    float scale[ROWS], zero[ROWS];
    float mantissa[256];
    uint8_t code[ROWS][WIDE];
    int number;
    int size[STEPS]; /* rows of the step that move at a time */
};

/* Rows of a step move at a time whose |F_ij| / sqrt(F_ii F_jj) have a sum of ALIKE
 * at most: with larger ones they would all make up for the same. */
#define ALIKE 0.4f

/* Row r of 64 moves in step r % STEPS; and row place(r) is the one that comes at
 * r. */
static __device__ __forceinline__ int place(int r)
{
    return r % STEPS * STEP + r / STEPS;
}

/* Where the block begins: the next 64 rows that none has begun, of all modules
 * before any module's later ones, so that a block waits for blocks alone that run
 * or have ended.  Returns their number in the module. */
static __device__ int take_rows(struct fisher_memory *s, struct fisher_group *a)
{
    int blocks = (int)(a->ld / ROWS), i, number, r0;

    if (threadIdx.x == 0)
        s->number = atomicAdd(a->published + a->modules * blocks, 1);
    __syncthreads();
    i = s->number % a->modules;
    number = s->number / a->modules;
    r0 = number * ROWS;
    *a = fisher_of(*a, i);
    a->published += i * blocks;
    a->gradient += r0;
    a->w += r0;
    a->d += r0;
    a->split += r0;
    a->codes += r0;
    a->meta += *a->input / a->group * a->pitch + r0;
    a->rows = min(a->rows - r0, (int)ROWS);
    return number;
}

template <enum dtype S>
static __device__ void fetch(struct fisher_memory *s,
                             const struct fisher_group &a, int number)
{
    const float *f = a.fisher + (uint64_t)number * ROWS * (a.ld + 1);
    int t = (int)threadIdx.x;

    for (int i = t; i < WIDE * WIDE / 4; i += THREADS) {
        int k = i / (WIDE / 4), j = i % (WIDE / 4) * 4;

        if (k < a.n)
            refined_copy(&s->h[k][j], a.square + k * WIDE + j);
        else
            *(float4 *)&s->h[k][j] = make_float4(0, 0, 0, 0);
    }
    for (int i = t; i < 256; i += THREADS)
        s->mantissa[i] = a.mantissa[i];
    for (int i = t; i < ROWS * WIDE; i += THREADS) {
        int r = i % ROWS, k = i / ROWS;

        s->code[place(r)][k] =
            k < a.n && r < a.rows ? a.codes[k * a.pitch + r] : 0;
    }
    for (int i = t; i < ROWS * ROWS; i += THREADS)
        s->f[place(i / ROWS)][place(i % ROWS)] = f[i / ROWS * a.ld + i % ROWS];
    refined_arrived();
    if (t < ROWS) {
        uint32_t meta = t < a.rows ? a.meta[t] : 0;

        s->scale[place(t)] = refined_scale<S>(s->mantissa, meta);
        s->zero[place(t)] = (float)meta_zero(meta);
    }
}

static __device__ __forceinline__ int acquire(const int *p)
{
    int x;

    asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

/* F of the 64 rows of block b and of these, on its way to s->before. */
static __device__ void fetch_before(struct fisher_memory *s,
                                    const struct fisher_group &a, int number,
                                    int b)
{
    const float *f = a.fisher + (uint64_t)b * ROWS * a.ld + number * ROWS;

    for (int i = (int)threadIdx.x; i < ROWS * ROWS / 4; i += THREADS) {
        int j = i / (ROWS / 4), r = i % (ROWS / 4) * 4;

        refined_copy(&s->before[b & 1][j][r], f + j * a.ld + r);
    }
}

/* g += F v of the rows of a step; f, v: of the first of them. */
static __device__ __forceinline__ void push_step(float *g, const float *f,
                                                 const float *v)
{
    float moved[STEP];

#pragma unroll
    for (int j = 0; j < STEP; j++)
        moved[j] = __ldcg(v + j * STEPS * WIDE);
#pragma unroll
    for (int j = 0; j < STEP; j++)
#pragma unroll
        for (int i = 0; i < OWN; i += 4) {
            float4 x = *(const float4 *)(f + j * STEPS * ROWS + i);

            g[i] = fmaf(x.x, moved[j], g[i]);
            g[i + 1] = fmaf(x.y, moved[j], g[i + 1]);
            g[i + 2] = fmaf(x.z, moved[j], g[i + 2]);
            g[i + 3] = fmaf(x.w, moved[j], g[i + 3]);
        }
}

/* s->g = G and the F v of all rows before.  A thread has OWN rows of a column. */
static __device__ void gather(struct fisher_memory *s,
                              const struct fisher_group &a, int number)
{
    int k = (int)threadIdx.x % WIDE, r = (int)threadIdx.x / WIDE * OWN;
    const float *v = a.pushed + k;
    float g[OWN];

    if (number)
        fetch_before(s, a, number, 0);
#pragma unroll
    for (int i = 0; i < OWN; i++)
        g[i] = k < a.n ? a.gradient[k * a.ld + r + i] : 0;
    for (int b = 0; b < number; b++, v += ROWS * WIDE) {
        const float *f = s->before[b & 1][0] + r;
        int there = acquire(a.published + b);

        refined_arrived();
        if (b + 1 < number)
            fetch_before(s, a, number, b + 1);
        if (there == STEPS) {
#pragma unroll 2
            for (int i = 0; i < STEPS; i++)
                push_step(g, f + i * ROWS, v + i * WIDE);
            continue;
        }
        for (int i = 0; i < STEPS; i++) {
            while (there <= i)
                there = acquire(a.published + b);
            push_step(g, f + i * ROWS, v + i * WIDE);
        }
    }
#pragma unroll
    for (int i = 0; i < OWN; i++)
        s->g[place(r + i)][k] = g[i];
    __syncthreads();
}

/* s->size[step], by a warp: 8, 4, 2 or 1. */
static __device__ void divide_step(struct fisher_memory *s, int step)
{
    int i = (int)threadIdx.x % STEP, size = STEP;
    const float *f = s->f[step * STEP + i] + step * STEP;

    for (; size > 1; size /= 2) {
        float sum = 0;

        for (int j = i / size * size; j < i / size * size + size; j++) {
            float other = s->f[step * STEP + j][step * STEP + j];

            if (j != i && f[i] > 0 && other > 0)
                sum += fabsf(f[j]) / (sqrtf(f[i]) * sqrtf(other));
        }
        if (__all_sync(~0u, sum <= ALIKE))
            break;
    }
    if (threadIdx.x % WARP == 0)
        s->size[step] = size;
}

/* All codes of the row at p, by a warp.  g: its G; curve: 1 / H's diagonal; sum:
 * what moved times H.  True when one has. */
static __device__ __forceinline__ bool move_row(struct fisher_memory *s, int p,
                                                const float *g,
                                                const float *curve, float *sum)
{
    int lane = (int)threadIdx.x % WARP;
    float f = s->f[p][p], scale = s->scale[p];
    float inverse_f = f > 0 ? 1 / f : 0, inverse_scale = 1 / scale;
    uint8_t *codes = &s->code[p][PARTS * lane];
    float code[PARTS], t[PARTS], inverse[PARTS];
    unsigned open = (1 << PARTS) - 1, ready;
    bool any = false;

#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        code[q] = (float)codes[q];
        t[q] = g[q] * inverse_f;
        inverse[q] = curve[q] * inverse_scale;
        sum[q] = 0;
    }
    for (;;) {
        int first = PARTS, from, c;
        float moved = 0, best = 0, m;

#pragma unroll
        for (int q = PARTS - 1; q >= 0; q--) {
            float x = fminf(fmaxf(fmaf(t[q], inverse[q], code[q]), 0), 15);

            x = (x + ROUNDER) - ROUNDER;
            if (x != code[q] && open >> q & 1) {
                first = q;
                best = x;
                moved = (code[q] - x) * scale;
            }
        }
        ready = __ballot_sync(~0u, first < PARTS);
        if (!ready)
            break;
        any = true;
        from = __ffs((int)ready) - 1;
        m = __shfl_sync(~0u, moved, from);
        c = PARTS * from + __shfl_sync(~0u, first, from);
        if (lane <= from)
            open = lane == from ? open & ~0u << (first + 1) : 0;
        const float4 h = *(const float4 *)&s->h[c][PARTS * lane];
        const float to[PARTS] = { h.x, h.y, h.z, h.w };

#pragma unroll
        for (int q = 0; q < PARTS; q++) {
            if (lane == from && q == first)
                code[q] = best;
            t[q] = fmaf(m, to[q], t[q]);
            sum[q] = fmaf(m, to[q], sum[q]);
        }
    }
#pragma unroll
    for (int q = 0; q < PARTS; q++)
        codes[q] = (uint8_t)code[q];
    return any;
}

/* to[0..PARTS) += sum over the rows j of a step of f[j] v[j]. */
static __device__ __forceinline__ void add_step(float *to, const float *f,
                                                const float4 *v)
{
#pragma unroll
    for (int j = 0; j < STEP; j++) {
        to[0] = fmaf(f[j], v[j].x, to[0]);
        to[1] = fmaf(f[j], v[j].y, to[1]);
        to[2] = fmaf(f[j], v[j].z, to[2]);
        to[3] = fmaf(f[j], v[j].w, to[3]);
    }
}

/* v[j] = what the rows of the step before `step` have moved, in the lane's
 * columns. */
static __device__ __forceinline__ void fetch_moves(struct fisher_memory *s,
                                                   int step, float4 *v)
{
    int k = (int)threadIdx.x % WARP * PARTS;

#pragma unroll
    for (int j = 0; j < STEP; j++)
        v[j] = *(const float4 *)&s->v[(step & 1) ^ 1][j][k];
}

/* Wait for the STEP warps that decide. */
static __device__ __forceinline__ void deciders_wait(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"(STEP * WARP) : "memory");
}

/* g += F v of the first n rows of this step. */
static __device__ __forceinline__ void add_before(const struct fisher_memory *s,
                                                  float *g, int p, int n)
{
    int step = p / STEP, k = (int)threadIdx.x % WARP * PARTS;

    for (int j = 0; j < n; j++) {
        float4 v = *(const float4 *)&s->v[step & 1][j][k];
        float f = s->f[p][step * STEP + j];

        g[0] = fmaf(f, v.x, g[0]);
        g[1] = fmaf(f, v.y, g[1]);
        g[2] = fmaf(f, v.z, g[2]);
        g[3] = fmaf(f, v.w, g[3]);
    }
}

/* The row of step `step` that is the warp's: its moves, to s->v and a.pushed. */
static __device__ __forceinline__ bool decide(struct fisher_memory *s,
                                              const struct fisher_group &a,
                                              int number, int step,
                                              const float *curve)
{
    int i = (int)threadIdx.x / WARP, k = (int)threadIdx.x % WARP * PARTS;
    int p = step * STEP + i, r = number * ROWS + place(p), size = s->size[step];
    float4 at = *(const float4 *)&s->g[p][k], v[STEP];
    float g[PARTS] = { at.x, at.y, at.z, at.w }, sum[PARTS];
    bool any = false;

    if (step) {
        fetch_moves(s, step, v);
        add_step(g, &s->f[p][(step - 1) * STEP], v);
    }
    for (int first = 0; first < STEP; first += size) {
        if (first)
            deciders_wait();
        if (i / size * size != first)
            continue;
        add_before(s, g, p, first);
        any = move_row(s, p, g, curve, sum);
        at = make_float4(sum[0], sum[1], sum[2], sum[3]);
        *(float4 *)&s->v[step & 1][i][k] = at;
        *(float4 *)&a.pushed[(uint64_t)r * WIDE + k] = at;
    }
    return any;
}

/* The moves of the step before `step` to G of the rows that come after `step`, by
 * warps STEP and on. */
static __device__ __forceinline__ void bring(struct fisher_memory *s, int step)
{
    int k = (int)threadIdx.x % WARP * PARTS;
    int p = (step + 1) * STEP + (int)threadIdx.x / WARP - STEP;
    float4 v[STEP];

    if (!step)
        return;
    fetch_moves(s, step, v);
    for (; p < ROWS; p += BRINGERS) {
        float4 *at = (float4 *)&s->g[p][k];
        float g[PARTS] = { at->x, at->y, at->z, at->w };

        add_step(g, &s->f[p][(step - 1) * STEP], v);
        *at = make_float4(g[0], g[1], g[2], g[3]);
    }
}

/* a.pushed has the first n steps: of all threads before the last barrier. */
static __device__ __forceinline__ void publish(const struct fisher_group &a,
                                               int number, int n)
{
    if (!n || threadIdx.x % WARP)
        return;
    __threadfence();
    atomicExch(a.published + number, n);
}

/* Move the codes of 64 rows of a group.  Shared memory: 165 KiB. */
template <enum dtype S>
static __global__ void __launch_bounds__(THREADS)
    fisher_group_kernel(struct fisher_group a)
{
    extern __shared__ float4 memory[];
    struct fisher_memory *s = (struct fisher_memory *)memory;
    int warp = (int)threadIdx.x / WARP, number = take_rows(s, &a);
    float curve[PARTS];
    bool any = false;

    fetch<S>(s, a, number);
    if (warp < STEPS)
        divide_step(s, warp);
    gather(s, a, number);
    for (int q = 0; q < PARTS; q++) {
        int k = (int)threadIdx.x % WARP * PARTS + q;

        curve[q] = s->h[k][k] > 0 ? 1 / s->h[k][k] : 0;
    }
    for (int step = 0; step < STEPS; step++) {
        if (warp < STEP)
            any |= decide(s, a, number, step, curve);
        else if (warp == PUBLISHER)
            publish(a, number, step);
        else
            bring(s, step);
        __syncthreads();
    }
    if (warp == PUBLISHER)
        publish(a, number, STEPS);
    if (any && threadIdx.x % WARP == 0)
        *a.any = 1;
    for (int i = (int)threadIdx.x; i < ROWS * a.n; i += THREADS) {
        int r = i % ROWS, k = i / ROWS, p = place(r);
        uint64_t at = k * a.pitch + r;
        float d;

        if (r >= a.rows)
            continue;
        d = a.w[at] - ((float)s->code[p][k] - s->zero[p]) * s->scale[p];
        a.codes[at] = s->code[p][k];
        a.d[at] = d;
        refined_split(a.split + 3 * k * a.pitch + r, a.pitch, d);
    }
}

template <enum dtype S>
static int launch(struct cuda_context *c, const struct fisher_group *a,
                  struct err *e)
{
    uint64_t blocks = a->modules * (a->ld / ROWS);
    int room = sizeof(struct fisher_memory);

    CUDA_TRY(cudaFuncSetAttribute(fisher_group_kernel<S>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    fisher_group_kernel<S><<<(unsigned)blocks, THREADS, room, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

int fisher_group_move(struct cuda_context *c, enum dtype scale_dtype,
                      const struct fisher_group *a, struct err *e)
{
    return scale_dtype == DT_F16 ? launch<DT_F16>(c, a, e) :
                                   launch<DT_BF16>(c, a, e);
}
