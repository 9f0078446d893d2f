/* cuda_experts.cu - the solver's part of cuda_bench that is a layer's work: the
 * experts of DeepSeek-V3's size with the default effort, gate, up and down of
 * each.  Hessians and cross moments are on the device, weights, grids and codes
 * in the host's memory; factors are made on the way.  One expert is compared with
 * the CPU's first. */
extern "C" { /* the library's functions are C's */
#include "gptq/grid/grid.h"
#include "gptq/solve/solve_refined.h"
}
#include "cuda_bench.cuh"

enum { HIDDEN = 7168, WIDTH = 2048, GROUP = 128, SETS = 8, EXPERTS = 256 };

/* s_i s_j 0.7^|i - j|, as a first-order process whose inputs differ in size. */
static __device__ __forceinline__ float moment(uint64_t i, uint64_t j,
                                               uint64_t seed)
{
    float d = i > j ? (float)(i - j) : (float)(j - i);

    return expf(0.7f * (noise(i, seed) + noise(j, seed))) * exp2f(-0.5146f * d);
}

/* Packed lower triangle, and 0.03 of it as E; a block of threads a row. */
static __global__ void bench_moments_kernel(float *h, float *drift, uint64_t n,
                                            uint64_t seed)
{
    uint64_t i = blockIdx.x;

    for (uint64_t j = threadIdx.x; j < n; j += blockDim.x) {
        float x = moment(i, j, seed);

        if (j <= i)
            h[i * (i + 1) / 2 + j] = x;
        if (drift)
            drift[i * n + j] = 0.03f * x;
    }
}

/* F: some percent of what the diagonal alone would give. */
static __global__ void bench_gap_kernel(float *gap, const __nv_bfloat16 *w,
                                        uint64_t cols, uint64_t seed)
{
    uint64_t r = blockIdx.x;

    for (uint64_t i = threadIdx.x; i < cols; i += blockDim.x)
        gap[r * cols + i] =
            0.05f * __bfloat162float(w[r * cols + i]) * moment(i, i, seed);
}

/* Linears of one input: gate and up, or down. */
struct input {
    uint64_t rows, cols;
    int n;
    float *h, *drift, *gap; /* the device's */
    float *diagonal;        /* a packed triangle with nothing else in it */
    void *w[2];
    uint32_t *nearest[2], *meta[2];
    uint8_t *codes[2];
    struct refined_result result[2];
};

static struct solve_params shape(const struct input *in)
{
    struct solve_params p = {};

    p.rows = in->rows;
    p.cols = in->cols;
    p.group = GROUP;
    p.dtype = DT_BF16;
    p.scale_dtype = DT_F16;
    return p;
}

static size_t metas(const struct input *in)
{
    return in->rows * quant_groups(in->cols, GROUP) * 4;
}

static void make_weights(struct input *in, int k, uint64_t seed)
{
    size_t n = in->rows * in->cols;
    __nv_bfloat16 *w = random_bf16(n, 0.02f);
    struct grid_params p = {};

    p.rows = in->rows;
    p.cols = in->cols;
    p.group = GROUP;
    p.symmetric = true;
    p.search = GRID_ABSMAX;
    p.norm = 2;
    p.candidates = 1;
    p.scale_dtype = DT_F16;
    p.dtype = DT_BF16;
    in->w[k] = malloc(n * 2);
    in->nearest[k] = (uint32_t *)malloc(metas(in));
    in->meta[k] = (uint32_t *)malloc(metas(in));
    in->codes[k] = (uint8_t *)malloc(n / 2);
    if (in->gap)
        bench_gap_kernel<<<(unsigned)in->rows, 256, 0, c->stream>>>(
            in->gap, w, in->cols, seed);
    MUSTC(cudaStreamSynchronize(c->stream));
    MUSTC(cudaMemcpy(in->w[k], w, n * 2, cudaMemcpyDeviceToHost));
    MUSTC(cudaFree(w));
    MUST(cuda_grid(c, &p, in->w[k], in->nearest[k], &why));
}

static struct input make_input(uint64_t rows, uint64_t cols, int n,
                               uint64_t seed)
{
    uint64_t packed = cols * (cols + 1) / 2;
    struct input in = { rows, cols, n };

    in.h = (float *)device(packed * 4);
    if (n > 1)
        in.drift = (float *)device(cols * cols * 4);
    else
        in.gap = (float *)device(rows * cols * 4);
    in.diagonal = (float *)calloc(packed, 4);
    bench_moments_kernel<<<(unsigned)cols, 256, 0, c->stream>>>(in.h, in.drift,
                                                                cols, seed);
    MUSTC(cudaStreamSynchronize(c->stream));
    for (uint64_t i = 0; i < cols; i++)
        MUSTC(cudaMemcpyAsync(in.diagonal + i * (i + 1) / 2 + i,
                              in.h + i * (i + 1) / 2 + i, 4,
                              cudaMemcpyDeviceToHost, c->stream));
    MUSTC(cudaStreamSynchronize(c->stream));
    for (int k = 0; k < n; k++)
        make_weights(&in, k, seed);
    return in;
}

static struct factor_params factor_of(const struct input *in)
{
    struct factor_params p = {};

    p.cols = in->cols;
    p.group = GROUP;
    p.order = ORDER_GROUP;
    p.damping = 0.01;
    return p;
}

static struct refined_params params_of(const struct input *in)
{
    struct effort_plan plan = effort_plan(EFFORT_DEFAULT);
    struct refined_params p = {};

    p.solve = shape(in);
    p.block = { true, true, plan.factors, DT_F16 };
    p.sweeps = plan.sweeps;
    p.alpha = p.beta = 0.75;
    p.gap = in->gap;
    return p;
}

/* Inputs of one shape, in[0], in[step], ..: factors, then codes. */
static void solve_together(struct input *in, int step, int n)
{
    struct factor_params q = factor_of(in);
    struct refined_params p = params_of(in);
    struct cuda_matrix m[SETS] = {};
    struct cuda_refined x[2 * SETS] = {};
    struct refined_hessian b = {};
    struct factor *f[SETS];

    for (int i = 0; i < n; i++) {
        MUST(factor_plan(&f[i], &q, in[i * step].diagonal, &why));
        m[i].h = in[i * step].h;
        m[i].input = f[i]->input;
        m[i].dead = f[i]->dead;
        m[i].mean = f[i]->mean;
        m[i].damping = q.damping;
        m[i].whole = true;
    }
    b.starts = 1;
    b.factor[0] = f[0];
    MUST(cuda_factors_build(&f[0]->gpu, c, q.cols, m, n, &why));
    MUST(tile_plan_open(&b.plan[0], f[0], &q, in->diagonal, &why));
    for (int i = 0; i < n * in->n; i++) {
        struct input *of = in + i / in->n * step;
        int k = i % in->n;

        if (of->drift && !k)
            MUST(cuda_factors_drift(f[0]->gpu, i / in->n, of->drift, &why));
        memcpy(of->meta[k], of->nearest[k], metas(of));
        x[i].w = of->w[k];
        x[i].meta = of->meta[k];
        x[i].codes = of->codes[k];
        x[i].output = of->gap;
    }
    MUST(cuda_solve_refined(c, &p, &b, x, n * in->n, &why));
    for (int i = 0; i < n * in->n; i++)
        in[i / in->n * step].result[i % in->n] = x[i].result;
    cuda_factors_free(f[0]->gpu);
    f[0]->gpu = NULL;
    tile_plan_close(&b.plan[0]);
    for (int i = 0; i < n; i++)
        factor_free(f[i]);
}

/* The first linear by the CPU: its loss. */
static double loss_of_cpu(const struct input *in)
{
    uint64_t packed = in->cols * (in->cols + 1) / 2;
    uint64_t cross = (in->gap ? in->rows : in->cols) * in->cols;
    float *h = (float *)malloc(packed * 4), *e = (float *)malloc(cross * 4);
    uint32_t *meta = (uint32_t *)malloc(metas(in));
    uint8_t *codes = (uint8_t *)malloc(in->rows * in->cols / 2);
    struct factor_params q = factor_of(in);
    struct refined_params p = params_of(in);
    struct refined_hessian b;
    struct refined_result r;

    MUSTC(cudaMemcpy(h, in->h, packed * 4, cudaMemcpyDeviceToHost));
    MUSTC(cudaMemcpy(e, in->gap ? in->gap : in->drift, cross * 4,
                     cudaMemcpyDeviceToHost));
    MUST(refined_open(&b, &q, 1, h, false, &why));
    MUST(target_open(&b.target, &b.plan[0], in->gap ? NULL : e, &why));
    p.output = in->gap ? e : NULL;
    memcpy(meta, in->nearest[0], metas(in));
    MUST(refined_solve(&p, &b, in->w[0], meta, codes, &r, &why));
    refined_close(&b);
    free(h);
    free(e);
    free(meta);
    free(codes);
    return r.solve.loss;
}

static double flops(const struct input *in)
{
    double n = (double)in->cols, o = (double)in->rows * in->n;

    /* target, choice, one sweep, losses; and the factor */
    return o * n * n * ((in->gap ? 2 : 4) + 1 + 2 + 1) + n * n * n / 3;
}

static void time_experts(struct input *in, int experts, int together)
{
    double t, work = experts * (flops(&in[0]) + flops(&in[1]));

    solve_together(in, 2, together);
    solve_together(in + 1, 2, together);
    MUSTC(cudaStreamSynchronize(c->stream));
    t = seconds();
    for (int i = 0; i < experts; i += together)
        for (int k = 0; k < 2; k++)
            solve_together(in + 2 * (i % SETS) + k, 2, together);
    MUSTC(cudaStreamSynchronize(c->stream));
    t = seconds() - t;
    printf("%d experts of [%d, %d] x 3, default effort, moments on the GPU, %d "
           "at a time: %.2f s; %.0f TFLOP/s f32 (%.1fx its ceiling; %.2f of "
           "bf16 in three parts)\n",
           experts, WIDTH, HIDDEN, together, t, work / t / 1e12,
           work / t / f32_rate, 3 * work / t / bf16_rate);
    fflush(stdout);
}

void bench_experts(void)
{
    struct input in[2 * SETS];

    for (int i = 0; i < SETS; i++) {
        in[2 * i] = make_input(WIDTH, HIDDEN, 2, 1000 + i);
        in[2 * i + 1] = make_input(HIDDEN, WIDTH, 1, 2000 + i);
    }
    for (int k = 0; k < 2; k++) {
        double want = loss_of_cpu(&in[k]), off;

        solve_together(&in[k], 2, 2);
        off = in[k].result[0].solve.loss / want - 1;
        printf("%s: loss %+.1e of the CPU's\n", k ? "down" : "gate", off);
        must(fabs(off) < 1e-3 ? 0 : err_set(&why, E_BUG, "loss %g", want),
             "experts");
    }
    time_experts(in, EXPERTS, 2);
}
