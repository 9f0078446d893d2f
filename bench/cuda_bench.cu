/* cuda_bench.cu - the plug-in's stages on device memory, each checked first.
 *
 * Times are medians of CUDA events after a warm-up; the ceilings are measured
 * in the same run.  The peer is the NVIDIA library that does the same or, for
 * the Hessian, the whole square by one cuBLAS call, in f32 as other
 * quantizers run it and in bf16. */
#include <unistd.h>

#include "cuda_bench.cuh"

/* ---- ceilings ---- */

static void gemm(cudaDataType t, const void *a, const void *b, float *out,
                 int n, cublasComputeType_t how)
{
    const float one = 1, zero = 0;

    MUSTB(cublasGemmEx(c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one,
                       a, t, n, b, t, n, &zero, out, CUDA_R_32F, n, how,
                       CUBLAS_GEMM_DEFAULT));
}

static void ceilings(void)
{
    size_t n = (size_t)4 << 30, k = 8192;
    char *a = (char *)device(n), *b = (char *)device(n);
    double ms = timed([&] {
        MUSTC(cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice, c->stream));
    });

    copy_rate = 2 * (double)n / ms * 1e3;
    bench_bf16_kernel<<<4096, 256, 0, c->stream>>>((__nv_bfloat16 *)a, k * k, 1,
                                                   time(NULL));
    ms = timed([&] {
        gemm(CUDA_R_16BF, a, a, (float *)b, (int)k, CUBLAS_COMPUTE_32F);
    });
    bf16_rate = 2 * (double)k * k * k / ms * 1e3;
    bench_f32_kernel<<<4096, 256, 0, c->stream>>>((float *)a, k * k, 1,
                                                  time(NULL));
    ms = timed(
        [&] { gemm(CUDA_R_32F, a, a, (float *)b, (int)k, CUBLAS_COMPUTE_32F); },
        3);
    f32_rate = 2 * (double)k * k * k / ms * 1e3;
    printf("ceilings: copy %.0f GB/s, product 8192^3 bf16 %.0f, f32 %.1f "
           "TFLOP/s\n\n",
           copy_rate / 1e9, bf16_rate / 1e12, f32_rate / 1e12);
    MUSTC(cudaFree(a));
    MUSTC(cudaFree(b));
    /* The products have the clock lowered for a while: what followed at once had 78 % of
     * copying where it has 89. */
    sleep(1);
}

/* ---- factor ---- */

/* Matrix blockIdx.z of n: a Toeplitz matrix of a first-order process plus a
 * diagonal, positive definite and badly conditioned as Hessians are. */
static __global__ void bench_spd_kernel(float *a, uint64_t cols, uint64_t ld)
{
    uint64_t r = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t col = blockIdx.y;
    float *m = a + blockIdx.z * ld * ld;

    if (r >= ld)
        return;
    if (r >= cols || col >= cols)
        m[col * ld + r] = r == col;
    else
        m[col * ld + r] = exp2f(-0.5f * fabsf((float)r - (float)col)) +
                          (r == col ? 0.02f + (float)(r % 7) * 0.1f : 0);
}

static void factor(uint64_t cols, int n)
{
    float *a = (float *)device(n * cols * cols * 4);
    float *b = (float *)device(n * cols * cols * 4);
    int *info = (int *)device(n * sizeof(int)), *host;
    dim3 grid((unsigned)((cols + 255) / 256), (unsigned)cols, (unsigned)n);
    double ms, copy;

    bench_spd_kernel<<<grid, 256, 0, c->stream>>>(a, cols, cols);
    auto refill = [&] {
        MUSTC(cudaMemcpyAsync(b, a, n * cols * cols * 4,
                              cudaMemcpyDeviceToDevice, c->stream));
    };
    copy = timed(refill, 5);
    ms = timed(
        [&] {
            refill();
            MUST(factor_potrf(c, b, cols, cols, n, info, &why));
        },
        5);
    host = (int *)malloc(n * sizeof(int));
    MUSTC(cudaMemcpy(host, info, n * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++)
        must(host[i] ? err_set(&why, E_BUG, "info %d", host[i]) : 0, "potrf");
    ms -= copy;
    printf("factor, %d x n = %llu: %.2f ms, %.2f ms each, %.1f TFLOP/s\n", n,
           (unsigned long long)cols, ms, ms / n,
           n * (double)cols * cols * cols / 3 / ms / 1e9);
    free(host);
    MUSTC(cudaFree(a));
    MUSTC(cudaFree(b));
    MUSTC(cudaFree(info));
}

/* The same matrix as a packed triangle, row blockIdx.y. */
static __global__ void bench_triangle_kernel(float *h, uint64_t cols)
{
    uint64_t j = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t i = blockIdx.y;

    if (j <= i)
        h[i * (i + 1) / 2 + j] = exp2f(-0.5f * (float)(i - j)) +
                                 (i == j ? 0.02f + (float)(i % 7) * 0.1f : 0);
}

/* Wall seconds of making a factor from a packed triangle: memory, filling, potrf,
 * splitting.  input: the order. */
static double build(float *h, const uint32_t *input, const bool *dead,
                    uint64_t cols, struct cuda_factors **f)
{
    struct cuda_matrix m = {};
    double start = seconds();

    m.h = h;
    m.input = input;
    m.dead = dead;
    m.mean = 1;
    m.damping = 0.01;
    MUST(cuda_factors_build(f, c, cols, &m, 1, &why));
    MUSTC(cudaStreamSynchronize(c->stream));
    must(m.failed || m.n_tried != 1 ? err_set(&why, E_BUG, "failed") : 0,
         "factors_build");
    return seconds() - start;
}

/* The same in the order of the inputs, reversed, and in a random one, with its
 * parts; the second time, when the memory is there. */
static void factor_packed(uint64_t cols)
{
    float *h = (float *)device(cols * (cols + 1) / 2 * 4);
    int *info = (int *)device(sizeof(int));
    uint32_t *input = (uint32_t *)malloc(cols * 4);
    bool *dead = (bool *)calloc(cols, 1);
    dim3 grid((unsigned)((cols + 255) / 256), (unsigned)cols);
    struct cuda_factors *f;
    double potrf, split;

    bench_triangle_kernel<<<grid, 256, 0, c->stream>>>(h, cols);
    for (uint64_t i = 0; i < cols; i++)
        input[i] = (uint32_t)(cols - 1 - i);
    for (int k = 0; k < 4; k++) {
        double s = build(h, input, dead, cols, &f);

        printf("factor of a packed triangle, n = %llu, %s order, %s time: %.1f "
               "ms\n",
               (unsigned long long)cols, k < 2 ? "the inputs'" : "random",
               k % 2 ? "second" : "first", s * 1e3);
        if (k == 3)
            break;
        cuda_factors_free(f);
        for (uint64_t i = cols - 1; k == 1 && i > 0; i--)
            std::swap(input[i], input[rand() % (i + 1)]);
    }
    split = timed([&] { MUST(factor_split(c, f, &why)); }, 3);
    potrf = timed(
        [&] {
            bench_spd_kernel<<<grid, 256, 0, c->stream>>>(f->l, cols,
                                                          f->padded);
            MUST(factor_potrf(c, f->l, cols, f->padded, 1, info, &why));
        },
        3);
    printf("  of these potrf %.1f ms (%.1f TFLOP/s), splitting %.1f ms\n",
           potrf, (double)cols * cols * cols / 3 / potrf / 1e9, split);
    cuda_factors_free(f);
    free(input);
    free(dead);
    MUSTC(cudaFree(h));
    MUSTC(cudaFree(info));
}

/* ---- solve ---- */

struct layer {
    struct cuda_factors f;
    struct solve_state s;
};

static __global__ void bench_order_kernel(uint32_t *input, uint64_t cols)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < cols)
        input[blockIdx.y * cols + i] = (uint32_t)(cols - 1 - i);
}

/* Scales of 2^-7 or so, symmetric. */
static __global__ void bench_meta_kernel(uint32_t *meta, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        meta[i] = (uint16_t)(-7 * 256 + (int)(i * 37 % 100)) | 1u << 24;
}

static void make_layer(struct layer *x, uint64_t rows, uint64_t cols, int n)
{
    uint64_t square = n * cols * cols, all = n * rows * cols;
    dim3 grid((unsigned)((cols + 255) / 256), (unsigned)cols, (unsigned)n);
    int *info = (int *)device(n * sizeof(int));

    memset(x, 0, sizeof(*x));
    x->f.c = c;
    x->f.cols = x->f.padded = cols;
    x->f.n = n;
    x->f.l = (float *)device(square * 4);
    x->f.diagonal = (float *)device(n * cols * SOLVE_BLOCK * 4);
    x->f.split = (__nv_bfloat16 *)device(square * 6);
    x->f.input = (uint32_t *)device(n * cols * 4);
    x->f.lambdas = (double *)device(n * 8);
    MUSTC(cudaMemset(x->f.lambdas, 0, n * 8));
    bench_spd_kernel<<<grid, 256, 0, c->stream>>>(x->f.l, cols, cols);
    MUST(factor_potrf(c, x->f.l, cols, cols, n, info, &why));
    MUST(factor_split(c, &x->f, &why));
    bench_order_kernel<<<dim3((unsigned)((cols + 255) / 256), (unsigned)n), 256,
                         0, c->stream>>>(x->f.input, cols);
    x->s.rows = x->s.padded_rows = rows;
    x->s.groups = cols / 128;
    x->s.w = (float *)device(all * 4);
    x->s.pushed = (float *)device(all * 4);
    x->s.split = (__nv_bfloat16 *)device(all * 6);
    x->s.codes = (uint8_t *)device(all);
    x->s.meta = (uint32_t *)device(all / 128 * 4);
    x->s.loss = (double *)device(n * rows * 8);
    bench_f32_kernel<<<4096, 256, 0, c->stream>>>(x->s.w, all, 0.02f,
                                                  time(NULL));
    bench_meta_kernel<<<(unsigned)(all / 128 / 256 + 1), 256, 0, c->stream>>>(
        x->s.meta, all / 128);
    MUSTC(cudaFree(info));
}

static void free_layer(struct layer *x)
{
    void *p[] = { x->f.l,       x->f.diagonal, x->f.split,  x->f.input,
                  x->f.lambdas, x->s.w,        x->s.pushed, x->s.split,
                  x->s.codes,   x->s.meta,     x->s.loss };

    for (void *q : p)
        MUSTC(cudaFree(q));
}

static double total_loss(const struct layer *x)
{
    size_t n = x->f.n * x->s.rows;
    double *rows = (double *)malloc(n * 8), sum = 0;

    MUSTC(cudaMemcpy(rows, x->s.loss, n * 8, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++)
        sum += rows[i];
    free(rows);
    return sum;
}

static void solve(uint64_t rows, uint64_t cols, int n)
{
    struct solve_params p = {};
    struct layer x;
    const float *mantissa;
    double ms, loss, again, flops = (double)n * rows * cols * cols;

    p.rows = rows;
    p.cols = cols;
    p.group = 128;
    p.dtype = DT_BF16;
    p.scale_dtype = DT_F16;
    make_layer(&x, rows, cols, n);
    MUST(context_scales(c, DT_F32, &mantissa, &why));
    auto run = [&] {
        MUSTC(cudaMemsetAsync(x.s.loss, 0, n * rows * 8, c->stream));
        MUST(solve_blocks(c, &p, &x.f, &x.s, mantissa, &why));
    };
    run();
    MUSTC(cudaStreamSynchronize(c->stream));
    loss = total_loss(&x);
    run();
    MUSTC(cudaStreamSynchronize(c->stream));
    again = total_loss(&x);
    must(loss > 0 && isfinite(loss) && loss == again ?
             0 :
             err_set(&why, E_BUG, "loss %g, then %g", loss, again),
         "solve");
    ms = timed(run);
    printf("solve, %d x [%llu, %llu]: %.3f ms, %.3f ms each; %.0f TFLOP/s f32 "
           "(%.1fx its ceiling)\n",
           n, (unsigned long long)rows, (unsigned long long)cols, ms, ms / n,
           flops / ms / 1e9, flops / ms * 1e3 / f32_rate);
    free_layer(&x);
}

/* ---- grid ---- */

static void grid(uint64_t rows, uint64_t cols, enum grid_search search,
                 double norm, int candidates, bool symmetric)
{
    __nv_bfloat16 *w = random_bf16(rows * cols, 0.02f);
    uint32_t *meta = (uint32_t *)device(rows * cols / 128 * 4), *want, *got;
    float *ones = NULL;
    struct grid_params p = {};
    enum { CHECKED = 64 };
    uint64_t n = CHECKED * cols / 128;
    void *host;
    double ms, points;

    p.rows = rows;
    p.cols = cols;
    p.group = 128;
    p.symmetric = symmetric;
    p.search = search;
    p.norm = norm;
    p.candidates = candidates;
    p.scale_dtype = DT_F16;
    p.dtype = DT_BF16;
    if (search == GRID_HESSIAN) {
        ones = (float *)malloc(cols * 4);
        for (uint64_t i = 0; i < cols; i++)
            ones[i] = 1 / (float)(1 + i % 128 * 7 % 128);
    }
    float *importance = ones ? (float *)device(cols * 4) : NULL;
    if (ones)
        MUSTC(cudaMemcpy(importance, ones, cols * 4, cudaMemcpyHostToDevice));
    ms = timed([&] { MUST(grid_device(c, &p, w, importance, 0, meta, &why)); },
               5);

    host = malloc(CHECKED * cols * 2);
    want = (uint32_t *)malloc(n * 4);
    got = (uint32_t *)malloc(n * 4);
    MUSTC(cudaMemcpy(host, w, CHECKED * cols * 2, cudaMemcpyDeviceToHost));
    MUSTC(cudaMemcpy(got, meta, n * 4, cudaMemcpyDeviceToHost));
    p.rows = CHECKED;
    p.importance = ones;
    MUST(grid_cpu.search(&p, host, want, &why));
    must(memcmp(want, got, n * 4) ? err_set(&why, E_BUG, "grids differ") : 0,
         "grid");
    points = (double)rows * cols * candidates * (symmetric ? 1 : 3);
    printf("grid, [%llu, %llu], %d candidates%s, |e|^%g%s: %.2f ms, %.0f G "
           "weight-points/s\n",
           (unsigned long long)rows, (unsigned long long)cols, candidates,
           symmetric ? "" : " x 3 zeros", norm, ones ? ", weighted" : "", ms,
           points / ms / 1e6);
    free(host);
    free(want);
    free(got);
    free(ones);
    MUSTC(cudaFree(importance));
    MUSTC(cudaFree(w));
    MUSTC(cudaFree(meta));
}

/* ---- pack ---- */

enum { PACK_GROUP = 128 };

static void say_packed(const char *what, enum layout l, uint64_t rows,
                       uint64_t cols, size_t moved, double ms)
{
    printf("%s, %s, [%llu, %llu]: %.4f ms, %.0f GB/s, %.0f %% of copy\n", what,
           layout_name(l), (unsigned long long)rows, (unsigned long long)cols,
           ms, moved / ms / 1e6, 100 * moved / ms * 1e3 / copy_rate);
}

/* Words of codes, or (nearest) codes of weights. */
static void pack(uint64_t rows, uint64_t cols, enum layout l, bool nearest)
{
    __nv_bfloat16 *w = random_bf16(rows * cols, 0.02f);
    uint64_t groups = rows * cols / PACK_GROUP;
    uint32_t *meta = (uint32_t *)device(groups * 4);
    struct pack_job p = {};

    bench_meta_kernel<<<(unsigned)(groups / 256 + 1), 256, 0, c->stream>>>(
        meta, groups);
    p.layout = l;
    p.rows = rows;
    p.cols = cols;
    p.group = PACK_GROUP;
    p.dtype = DT_BF16;
    p.scale_dtype = DT_F16;
    p.w = nearest ? w : NULL;
    p.codes = (const uint32_t *)w;
    p.meta = meta;
    p.out = (uint32_t *)device(rows * cols / 2);
    say_packed(nearest ? "round to nearest" : "pack codes", l, rows, cols,
               rows * cols / 2 * (nearest ? 5 : 2),
               timed([&] { MUST(pack_device(c, &p, &why)); }));
    MUSTC(cudaFree(w));
    MUSTC(cudaFree(meta));
    MUSTC(cudaFree(p.out));
}

/* Words and grids from weights, in one pass. */
static void rounding(uint64_t rows, uint64_t cols, enum layout l,
                     bool symmetric)
{
    const struct round_params p = { "w",       rows,    cols,  PACK_GROUP,
                                    symmetric, DT_BF16, DT_F16 };
    __nv_bfloat16 *w = random_bf16(rows * cols, 0.02f);
    size_t metas = rows * cols / PACK_GROUP * 4;
    uint32_t *meta = (uint32_t *)device(metas);
    uint32_t *out = (uint32_t *)device(rows * cols / 2);

    say_packed(symmetric ? "absmax, round and pack, symmetric" :
                           "absmax, round and pack, asymmetric",
               l, rows, cols, rows * cols / 2 * 5 + metas, timed([&] {
                   MUST(round_device(c, &p, l, w, meta, out, &why));
               }));
    MUSTC(cudaFree(w));
    MUSTC(cudaFree(meta));
    MUSTC(cudaFree(out));
}

static void bench_factor(void)
{
    factor(2048, 1);
    factor(7168, 1);
    factor(2048, 32);
    factor_packed(7168);
    factor_packed(28672);
}

static void bench_solve(void)
{
    solve(2048, 7168, 1);
    solve(7168, 2048, 1);
    solve(2048, 7168, 8);
    solve(7168, 2048, 8);
}

static void bench_grid(void)
{
    grid(7168, 18432, GRID_LP, 2.4, 100, true);
    grid(7168, 2048, GRID_LP, 2.4, 100, true);
    grid(7168, 18432, GRID_LP, 2, 100, true);
    grid(7168, 18432, GRID_HESSIAN, 2, 100, true);
    grid(7168, 18432, GRID_HESSIAN, 2.4, 100, true);
    grid(7168, 2048, GRID_LP, 2.4, 100, false);
}

static void bench_pack(void)
{
    for (int l = LAYOUT_CT; l <= LAYOUT_GPTQ; l++)
        rounding(7168, 18432, (enum layout)l, true);
    rounding(7168, 18432, LAYOUT_AWQ, false);
    pack(7168, 18432, LAYOUT_CT, true);
    for (int l = LAYOUT_CT; l <= LAYOUT_GPTQ; l++)
        pack(7168, 18432, (enum layout)l, false);
}

/* cuda_bench [STAGE]...: all of them by default. */
int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } stages[] = { { "hessian", bench_hessian }, { "ragged", bench_ragged },
                   { "factor", bench_factor },   { "solve", bench_solve },
                   { "grid", bench_grid },       { "pack", bench_pack },
                   { "experts", bench_experts }, { "w4a16", bench_w4a16 } };
    double t = seconds();

    cudaDeviceProp device;

    MUST(cuda_open(&c, 0, 0, &why));
    MUSTC(cudaGetDeviceProperties(&device, 0));
    MUST(need_blas(c, &why));
    MUST(need_solver(c, &why));
    printf("%s; start of the context, cuBLAS and cuSOLVER: %.2f s\n",
           device.name, seconds() - t);
    ceilings();
    for (size_t i = 0; i < ARRAY_LEN(stages); i++) {
        bool wanted = argc < 2;

        for (int k = 1; k < argc; k++)
            wanted |= !strcmp(argv[k], stages[i].name);
        if (wanted)
            stages[i].run();
    }
    return 0;
}
