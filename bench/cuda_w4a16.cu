/* cuda_w4a16.cu - products with 4-bit linears: from AWQ's words on the device,
 * against sums in double that read these words first.  Matrices take turns, so
 * that none stays in the caches; the peer is cuBLAS with W in x's type, and for
 * experts a call for each of them.  bench/w4a16_peer.py is what torch and Triton
 * need on the same machine. */
#include "cuda/w4a16_internal.cuh"
#include "cuda_bench.cuh"

enum {
    GROUP = 128,
    TURNS = 3,
    MOST_TILED = 1024,
    MOST_FEW = 512 /* rows */,
    NARROW = 14336 /* outputs */
};
enum { WAYS = W4_BY_BLAS + 1 };
static const char *const way_name[WAYS] = { "", "tiles", "few", "wgmma",
                                            "slabs" };

struct matrix {
    int64_t o, i;
    uint32_t *words;
    uint16_t *scales; /* of in_f16's type, or the other one */
    bool scales_in_f16;
    struct cuda_w4 *w;
};

static __global__ void bench_words_kernel(uint32_t *w, size_t n, uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += step) {
        uint64_t x = (i + 1) * 0x9e3779b97f4a7c15 + seed;

        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 27) * 0x94d049bb133111eb;
        w[i] = (uint32_t)(x >> 32);
    }
}

/* Element `at` of x, f16 or bf16. */
static __device__ double element(const uint16_t *x, int64_t at, bool in_f16)
{
    return (double)(in_f16 ? __half2float(((const __half *)x)[at]) :
                             __bfloat162float(((const __nv_bfloat16 *)x)[at]));
}

static __device__ uint16_t rounded(float v, bool in_f16)
{
    return in_f16 ? __half_as_ushort(__float2half(v)) :
                    __bfloat16_as_ushort(__float2bfloat16(v));
}

static __global__ void bench_scales_kernel(uint16_t *s, size_t n, bool in_f16,
                                           uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += step)
        s[i] = rounded(0.01f + 0.003f * noise(i, seed), in_f16);
}

/* From the picture of forge-layouts(5). */
static __device__ double weight_at(const struct matrix &m, int64_t o, int64_t k)
{
    const int place[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    uint32_t q = m.words[k * (m.o / 8) + o / 8] >> 4 * place[o % 8] & 15;

    return ((double)q - 8) *
           element(m.scales, k / GROUP * m.o + o, m.scales_in_f16);
}

/* bf16 to f16, in place. */
static __global__ void bench_half_kernel(uint16_t *x, size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += step)
        x[i] = rounded((float)element(x, (int64_t)i, false), true);
}

/* Of sampled elements: worst[0] the greatest |y - sum| / size of the terms. */
static __global__ void bench_check_kernel(struct matrix m, const uint16_t *x,
                                          bool in_f16, int64_t rows,
                                          const float *y,
                                          unsigned long long *worst)
{
    int64_t o = (int64_t)blockIdx.x * 37 % m.o;
    int64_t r = (int64_t)blockIdx.x * 11 % rows;
    __shared__ double total[2][32];
    double sum = 0, size = 0;

    for (int64_t k = threadIdx.x; k < m.i; k += 32) {
        double t = weight_at(m, o, k) * element(x, r * m.i + k, in_f16);

        sum += t;
        size += t * t;
    }
    total[0][threadIdx.x] = sum;
    total[1][threadIdx.x] = size;
    __syncwarp();
    if (threadIdx.x)
        return;
    for (int i = 1; i < 32; i++) {
        sum += total[0][i];
        size += total[1][i];
    }
    sum = fabs((double)y[r * m.o + o] - sum) / sqrt(size);
    atomicMax(worst, (unsigned long long)__double_as_longlong(
                         sum == sum ? sum : 1e300));
}

static __global__ void bench_dense_kernel(struct matrix m, bool in_f16,
                                          uint16_t *to)
{
    for (int64_t k = threadIdx.x; k < m.i; k += blockDim.x)
        to[blockIdx.x * m.i + k] =
            rounded((float)weight_at(m, blockIdx.x, k), in_f16);
}

/* Bytes of words and scales. */
static double stored_bytes(int64_t o, int64_t i)
{
    return (double)o * (double)i * (0.5 + 2.0 / GROUP);
}

static struct cuda_w4 *prepare(const struct matrix *m)
{
    struct forge_w4a16_linear l = {};
    struct cuda_w4 *w;

    l.layout = FORGE_W4A16_AWQ;
    l.outputs = m->o;
    l.inputs = m->i;
    l.group = GROUP;
    l.codes = m->words;
    l.scales = m->scales;
    l.scale_type = m->scales_in_f16 ? FORGE_W4A16_F16 : FORGE_W4A16_BF16;
    MUST(cuda_w4_prepare(c, &w, &l, &why));
    return w;
}

static struct matrix make(int64_t o, int64_t i, bool scales_in_f16,
                          uint64_t seed)
{
    struct matrix m = { o, i };

    m.words = (uint32_t *)device((size_t)(o * i / 2));
    m.scales = (uint16_t *)device((size_t)(o * i / GROUP * 2));
    m.scales_in_f16 = scales_in_f16;
    bench_words_kernel<<<4096, 256, 0, c->stream>>>(m.words,
                                                    (size_t)(o * i / 8), seed);
    bench_scales_kernel<<<1024, 256, 0, c->stream>>>(
        m.scales, (size_t)(o * i / GROUP), scales_in_f16, seed);
    m.w = prepare(&m);
    return m;
}

static void drop(struct matrix *m)
{
    cuda_w4_release(m->w);
    MUSTC(cudaFree(m->words));
    MUSTC(cudaFree(m->scales));
}

static bool in_f16; /* x is f16, else bf16 */

static enum forge_w4a16_type from_type(void)
{
    return in_f16 ? FORGE_W4A16_F16 : FORGE_W4A16_BF16;
}

static double checked(const struct matrix *m, const uint16_t *x, int64_t rows,
                      const float *y)
{
    unsigned long long *worst = (unsigned long long *)device(8), bits;
    double d;

    MUSTC(cudaMemsetAsync(worst, 0, 8, c->stream));
    bench_check_kernel<<<2048, 32, 0, c->stream>>>(*m, x, in_f16, rows, y,
                                                   worst);
    MUSTC(cudaMemcpyAsync(&bits, worst, 8, cudaMemcpyDefault, c->stream));
    MUSTC(cudaStreamSynchronize(c->stream));
    MUSTC(cudaFree(worst));
    memcpy(&d, &bits, 8);
    return d;
}

static void multiply(const struct cuda_w4 *w, const void *x, void *y,
                     enum forge_w4a16_type type, int64_t rows, int64_t o,
                     int64_t i, enum w4_way way)
{
    const struct forge_w4a16_rows from = { from_type(), (void *)x, i };
    const struct forge_w4a16_rows to = { type, y, o };
    const int64_t first[2] = { 0, rows };

    MUST(w4_grouped(c, &w, first, 1, &from, &to, way, &why));
}

/* Ways to compute a product, and cuBLAS with a dense W, each as a graph of CALLS calls by
 * TURNS matrices: launches leave no gaps. */
enum { CALLS = 4 * TURNS, DENSE = WAYS };
struct racer {
    bool runs;
    cudaGraphExec_t graph;
    double ms; /* of a call */
};

template <class F> static void record(struct racer *r, F fn)
{
    cudaGraph_t graph;

    MUSTC(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed));
    for (int k = 0; k < CALLS; k++)
        fn(k % TURNS);
    MUSTC(cudaStreamEndCapture(c->stream, &graph));
    MUSTC(cudaGraphInstantiate(&r->graph, graph, 0));
    MUSTC(cudaGraphDestroy(graph));
    r->runs = true;
}

/* Medians.  Power bounds the large products, and the GPU's clock follows what ran
 * before: each runs by itself for WARM_MS first, all of them forth and then back. */
static void race(struct racer r[DENSE + 1])
{
    enum { WARM_MS = 100 };
    float ms[DENSE + 1][2 * REPEATS];
    cudaEvent_t a, b;

    MUSTC(cudaEventCreate(&a));
    MUSTC(cudaEventCreate(&b));
    for (int turn = 0; turn < 2 * (DENSE + 1); turn++) {
        int i = turn <= DENSE ? turn : 2 * DENSE + 1 - turn;
        float warm = 0, *t = ms[i] + (turn > DENSE) * REPEATS;

        for (int n = 0; r[i].runs && n < REPEATS;) {
            MUSTC(cudaEventRecord(a, c->stream));
            MUSTC(cudaGraphLaunch(r[i].graph, c->stream));
            MUSTC(cudaEventRecord(b, c->stream));
            MUSTC(cudaEventSynchronize(b));
            MUSTC(cudaEventElapsedTime(&t[n], a, b));
            if (warm < WARM_MS)
                warm += t[n];
            else
                n++;
        }
    }
    for (int i = 0; i <= DENSE; i++) {
        if (!r[i].runs)
            continue;
        std::sort(ms[i], ms[i] + 2 * REPEATS);
        r[i].ms = (double)ms[i][REPEATS] / CALLS;
        MUSTC(cudaGraphExecDestroy(r[i].graph));
    }
    MUSTC(cudaEventDestroy(a));
    MUSTC(cudaEventDestroy(b));
}

static bool has_way(int way, int64_t rows)
{
    return way == W4_BY_TILES ? rows <= MOST_TILED :
           way == W4_BY_FEW   ? rows <= MOST_FEW && w4_few_runs(c) :
           way == W4_BY_WGMMA ? w4_wgmma_runs(c) :
                                true;
}

/* The error of a way, whose memory is there then.  Weights of some are rounded. */
static double error_of(const struct matrix *m, const uint16_t *x, float *y,
                       int64_t rows, int way)
{
    double worst;

    MUSTC(cudaMemsetAsync(y, 0xff, (size_t)(rows * m->o) * 4, c->stream));
    multiply(m->w, x, y, FORGE_W4A16_F32, rows, m->o, m->i, (enum w4_way)way);
    worst = checked(m, x, rows, y);
    must(worst < (way == W4_BY_TILES || way == W4_BY_FEW ? 2e-5 : 2e-2) ? 0 :
                                                                          -1,
         "not the product");
    multiply(m->w, x, y, from_type(), rows, m->o, m->i, (enum w4_way)way);
    return worst;
}

/* w: the matrices m in x's type. */
static void one_count(const struct matrix m[TURNS], uint16_t *const w[TURNS],
                      const uint16_t *x, float *y, int64_t rows)
{
    int64_t o = m[0].o, i = m[0].i;
    double bytes = stored_bytes(o, i) + 2.0 * (double)rows * (double)(o + i);
    double best = 0, automatic, worst[WAYS];
    const cudaDataType type = in_f16 ? CUDA_R_16F : CUDA_R_16BF;
    const float one = 1, zero = 0;
    struct racer r[DENSE + 1] = {};
    const auto dense = [&](int k) {
        MUSTB(c->blas.gemm(c->blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)o,
                           (int)rows, (int)i, &one, w[k], type, (int)i, x, type,
                           (int)i, &zero, y, type, (int)o, CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT));
    };

    for (int way = W4_AUTO; way < WAYS; way++)
        if (has_way(way, rows))
            worst[way] = error_of(m, x, y, rows, way);
    dense(0);
    for (int way = W4_AUTO; way < WAYS; way++)
        if (has_way(way, rows))
            record(&r[way], [&](int k) {
                multiply(m[k].w, x, y, from_type(), rows, o, i,
                         (enum w4_way)way);
            });
    record(&r[DENSE], dense);
    race(r);
    printf("w4a16 M = %4lld:", (long long)rows);
    for (int way = W4_AUTO + 1; way < WAYS; way++) {
        if (!r[way].runs)
            continue;
        best = best ? fmin(best, r[way].ms) : r[way].ms;
        printf(" %s %8.1f us (error %.1e),", way_name[way], r[way].ms * 1e3,
               worst[way]);
    }
    automatic = r[W4_AUTO].ms;
    printf(" chosen %8.1f us, cuBLAS %8.1f us: %.2fx; the best way %.2f of the "
           "chosen; %.0f %% "
           "of copy, %.0f TF/s\n",
           automatic * 1e3, r[DENSE].ms * 1e3, r[DENSE].ms / automatic,
           best / automatic, 100 * bytes / automatic * 1e3 / copy_rate,
           2.0 * (double)rows * (double)(o * i) / automatic * 1e-9);
}

/* Few rows, whose weights stay exact, for one pair of types alone; of narrow linears up
 * to MOST_FEW. */
static void one_linear(int64_t o, int64_t i, bool x_in_f16, bool scales_in_f16)
{
    static const int64_t counts[] = { 1,  2,   4,   8,   16,  32,   64,
                                      96, 128, 192, 256, 512, 1024, 4096 };
    const int64_t most = 4096;
    uint16_t *x = (uint16_t *)random_bf16((size_t)(most * i), 1), *w[TURNS];
    float *y = (float *)device((size_t)(most * o) * 4);
    struct matrix m[TURNS];
    double ms;

    in_f16 = x_in_f16;
    if (in_f16)
        bench_half_kernel<<<1024, 256, 0, c->stream>>>(x, (size_t)(most * i));
    for (int k = 0; k < TURNS; k++) {
        m[k] = make(o, i, scales_in_f16, 77 + k);
        w[k] = (uint16_t *)device((size_t)(o * i) * 2);
        bench_dense_kernel<<<(unsigned)o, 256, 0, c->stream>>>(m[k], in_f16,
                                                               w[k]);
    }
    ms = timed([&] { cuda_w4_release(prepare(&m[0])); });
    printf("w4a16 [%lld, %lld], x in %s, scales in %s: prepared in %.2f ms, "
           "%.1f MB where the checkpoint has %.1f\n",
           (long long)i, (long long)o, in_f16 ? "f16" : "bf16",
           scales_in_f16 ? "f16" : "bf16", ms,
           (double)cuda_w4_memory(m[0].w) / 1e6, stored_bytes(o, i) / 1e6);
    for (int64_t rows : counts)
        if ((in_f16 != scales_in_f16 || rows > FORGE_W4A16_CUDA_EXACT) &&
            (o > NARROW || (rows <= MOST_FEW && !(rows & (rows - 1)))))
            one_count(m, w, x, y, rows);
    in_f16 = false;
    for (int k = 0; k < TURNS; k++) {
        drop(&m[k]);
        MUSTC(cudaFree(w[k]));
    }
    MUSTC(cudaFree(x));
    MUSTC(cudaFree(y));
}

/* ---- experts ---- */

enum { EXPERTS = 256, TOP = 8, WIDTH = 2048, HIDDEN = 7168 };

/* Rows of each expert, of tokens that choose TOP different ones at random. */
static void choose(int64_t tokens, int64_t first[EXPERTS + 1])
{
    static uint64_t state = 99;
    bool taken[EXPERTS];

    memset(first, 0, (EXPERTS + 1) * sizeof(*first));
    for (int64_t t = 0; t < tokens; t++) {
        memset(taken, 0, sizeof(taken));
        for (int n = 0; n < TOP;) {
            int e;

            state = state * 6364136223846793005u + 1442695040888963407u;
            e = (int)(state >> 40) % EXPERTS;
            n += !taken[e];
            first[e + 1] += !taken[e];
            taken[e] = true;
        }
    }
    for (int e = 0; e < EXPERTS; e++)
        first[e + 1] += first[e];
}

/* *worst: the greatest error of all experts or of every seventh one; returns how
 * many have rows. */
static int check_experts(const struct matrix m[EXPERTS],
                         const int64_t first[EXPERTS + 1], bool all,
                         const uint16_t *x, const float *y, double *worst)
{
    int active = 0;
    bool exact;

    *worst = 0;
    for (int e = 0; e < EXPERTS; e++) {
        int64_t rows = first[e + 1] - first[e];

        active += rows > 0;
        if (rows && (all || e % 7 == 0))
            *worst = fmax(*worst, checked(&m[e], x + first[e] * HIDDEN, rows,
                                          y + first[e] * WIDTH));
    }
    exact = first[EXPERTS] <= (int64_t)FORGE_W4A16_CUDA_EXACT * active;
    must(*worst < (exact ? 2e-5 : 2e-2) ? 0 : -1, "not the experts' product");
    return active;
}

static void experts(void)
{
    static struct matrix m[EXPERTS];
    static const struct cuda_w4 *w[EXPERTS];
    const int64_t most = 4096 * TOP;
    uint16_t *x = (uint16_t *)random_bf16((size_t)most * HIDDEN, 1);
    float *y = (float *)device((size_t)most * WIDTH * 4);

    for (int e = 0; e < EXPERTS; e++) {
        m[e] = make(WIDTH, HIDDEN, true, 1000 + e);
        w[e] = m[e].w;
    }
    for (int64_t tokens = 1; tokens <= 4096; tokens *= 4) {
        const struct forge_w4a16_rows from = { FORGE_W4A16_BF16, x, HIDDEN };
        struct forge_w4a16_rows to = { FORGE_W4A16_F32, y, WIDTH };
        int64_t first[EXPERTS + 1], rows = tokens * TOP;
        double floor, grouped, each, worst;
        int active;

        choose(tokens, first);
        MUSTC(cudaMemsetAsync(y, 0xff, (size_t)rows * WIDTH * 4, c->stream));
        MUST(w4_grouped(c, w, first, EXPERTS, &from, &to, W4_AUTO, &why));
        active = check_experts(m, first, tokens == 1, x, y, &worst);
        to.type = FORGE_W4A16_BF16;
        grouped = timed([&] {
            MUST(w4_grouped(c, w, first, EXPERTS, &from, &to, W4_AUTO, &why));
        });
        each = timed([&] {
            for (int e = 0; e < EXPERTS; e++)
                if (first[e + 1] > first[e])
                    multiply(w[e], x + first[e] * HIDDEN,
                             (uint16_t *)y + first[e] * WIDTH, FORGE_W4A16_BF16,
                             first[e + 1] - first[e], WIDTH, HIDDEN, W4_AUTO);
        });
        floor = fmax((active * stored_bytes(WIDTH, HIDDEN) +
                      2.0 * (double)rows * (WIDTH + HIDDEN)) /
                         copy_rate,
                     2.0 * (double)rows * WIDTH * HIDDEN / bf16_rate) *
                1e3;
        printf("w4a16 %4lld tokens of %d experts [%d, %d], %d each (error "
               "%.1e): %8.1f us, a call for each of %d %8.1f us: %.2fx; "
               "%.0f %% of the floor's speed\n",
               (long long)tokens, EXPERTS, HIDDEN, WIDTH, TOP, worst,
               grouped * 1e3, active, each * 1e3, each / grouped,
               100 * floor / grouped);
    }
    for (int e = 0; e < EXPERTS; e++)
        drop(&m[e]);
    MUSTC(cudaFree(x));
    MUSTC(cudaFree(y));
}

void bench_w4a16(void)
{
    one_linear(28672, 8192, false, true);
    one_linear(28672, 8192, true, true);
    one_linear(28672, 8192, false, false);
    /* the linears of an 8B model, alone or together, and a square one of 70B */
    one_linear(1024, 4096, false, true);
    one_linear(4096, 4096, false, true);
    one_linear(6144, 4096, false, true);
    one_linear(14336, 4096, false, true);
    one_linear(4096, 14336, false, true);
    one_linear(8192, 8192, false, true);
    experts();
}
