/* backward_attend_cuda.cu - backward pass of head norms, RoPE and attention.
 *
 * With scores S = scale Q Kᵀ, P = softmax S, O = P V, and gO the gradient with
 * respect to O:
 *
 *     gV = Pᵀ gO    gS = P ∘ (gO Vᵀ - rowsum(P ∘ gO Vᵀ))
 *     gQ = scale gS K    gK = scale gSᵀ Q
 *
 * Sequences of equal length that follow each other run together, queries in blocks, so
 * that at most GRADIENT_SCORES bytes of S and gS exist.  Heads are put one behind the
 * other, so that all products of a block are one batch over the sequences and the heads
 * of keys.  The query heads that share one are rows of the same matrix where a block has
 * all queries; else they follow each other, so that sums have an order. */
#include "cuda/backward_internal.cuh"

enum {
    DIMS = 512,   /* of a head, at most */
    ROTATORS = 4, /* warps of a block that turn heads */
    QUERIES = 512 /* of a block, at most */
};

/* ---- head norms and RoPE ---- */

struct rotation {
    float *x; /* [rows, heads * dim]: what was turned; gets its gradient */
    float *y; /* [sequences, heads, n, dim]: the result; its gradient */
    int heads, dim, at, rotary;
    bool pairs;
    const float *norm, *cs;
    float eps;
    const float *by; /* by position: the result's factor, or NULL */
    int n;           /* rows of a sequence */
};

/* Where head i % heads of row i / heads begins behind the others of its sequence. */
static __device__ __forceinline__ int64_t head_at(int64_t i, int heads,
                                                  int64_t n, int64_t dim)
{
    int64_t row = i / heads;

    return ((row / n * heads + i % heads) * n + row % n) * dim;
}

/* y = x normed and turned: a warp for each row and head. */
static __global__ void turn_kernel(struct rotation t, int64_t all)
{
    __shared__ float room[ROTATORS][DIMS];
    int64_t i = (int64_t)blockIdx.x * ROTATORS + threadIdx.y;
    float *x = room[threadIdx.y], sum = 0;
    float *y = t.y + head_at(i, t.heads, t.n, t.dim);
    int lane = threadIdx.x, half = t.rotary / 2;
    int64_t position = i / t.heads % t.n;
    const float *cs = t.cs + position * t.rotary;
    float by = t.by ? t.by[position] : 1;

    if (i >= all)
        return;
    for (int k = lane; k < t.dim; k += WARP) {
        x[k] = t.x[i * t.dim + k];
        sum += x[k] * x[k];
    }
    if (t.norm) {
        float scale = 1.0f / sqrtf(warp_sum(sum) / (float)t.dim + t.eps);

        for (int k = lane; k < t.dim; k += WARP)
            x[k] = __fmul_rn(__fmul_rn(x[k], scale), t.norm[k]);
    }
    __syncwarp();
    for (int k = lane; k < t.dim; k += WARP)
        if (k < t.at || k >= t.at + t.rotary)
            y[k] = __fmul_rn(x[k], by);
    for (int k = lane; k < half; k += WARP) {
        float a = x[t.at + (t.pairs ? 2 * k : k)];
        float b = x[t.at + (t.pairs ? 2 * k + 1 : half + k)];

        y[t.at + k] = __fmul_rn(
            __fsub_rn(__fmul_rn(a, cs[k]), __fmul_rn(b, cs[half + k])), by);
        y[t.at + half + k] = __fmul_rn(
            __fadd_rn(__fmul_rn(b, cs[k]), __fmul_rn(a, cs[half + k])), by);
    }
}

/* The reverse for gradients: from that with respect to y to that with respect
 * to x, which replaces x. */
static __global__ void turn_back_kernel(struct rotation t, int64_t all)
{
    __shared__ float room[ROTATORS][DIMS];
    int64_t i = (int64_t)blockIdx.x * ROTATORS + threadIdx.y;
    float *g = room[threadIdx.y], *x = t.x + i * t.dim;
    int64_t position = i / t.heads % t.n;
    const float *y = t.y + head_at(i, t.heads, t.n, t.dim);
    const float *cs = t.cs + position * t.rotary;
    int lane = threadIdx.x, half = t.rotary / 2;
    double squares = 0, dot = 0, r;
    float by = t.by ? t.by[position] : 1;

    if (i >= all)
        return;
    for (int k = lane; k < t.dim; k += WARP)
        if (k < t.at || k >= t.at + t.rotary)
            g[k] = __fmul_rn(y[k], by);
    for (int k = lane; k < half; k += WARP) {
        float a = __fmul_rn(y[t.at + k], by);
        float b = __fmul_rn(y[t.at + half + k], by);

        g[t.at + (t.pairs ? 2 * k : k)] =
            __fadd_rn(__fmul_rn(a, cs[k]), __fmul_rn(b, cs[half + k]));
        g[t.at + (t.pairs ? 2 * k + 1 : half + k)] =
            __fsub_rn(__fmul_rn(b, cs[k]), __fmul_rn(a, cs[half + k]));
    }
    __syncwarp();
    for (int k = lane; t.norm && k < t.dim; k += WARP) {
        squares += (double)x[k] * (double)x[k];
        dot += (double)x[k] * (double)__fmul_rn(t.norm[k], g[k]);
    }
    squares = warp_sum(squares);
    dot = warp_sum(dot);
    r = sqrt(squares / t.dim + (double)t.eps);
    dot /= t.dim * r * r;
    for (int k = lane; k < t.dim; k += WARP)
        x[k] = t.norm ? (float)(((double)__fmul_rn(t.norm[k], g[k]) -
                                 (double)x[k] * dot) /
                                r) :
                        g[k];
}

static int turn(struct cuda_context *c, const struct rotation *t, int64_t rows,
                bool back, struct err *e)
{
    int64_t all = rows * t->heads, blocks = (all + ROTATORS - 1) / ROTATORS;
    dim3 threads(WARP, ROTATORS);

    if (back)
        turn_back_kernel<<<(unsigned)blocks, threads, 0, c->stream>>>(*t, all);
    else
        turn_kernel<<<(unsigned)blocks, threads, 0, c->stream>>>(*t, all);
    LAUNCHED();
    return 0;
}

/* y[sequences, heads, n, dim] = x[rows, heads * dim], or back: the reverse; `all`
 * numbers. */
static __global__ void __launch_bounds__(ROW)
    part_kernel(float *x, float *y, int heads, int64_t n, int64_t dim,
                int64_t all, bool back)
{
    EACH(i, all)
    {
        int64_t at = head_at(i / dim, heads, n, dim) + i % dim;

        if (back)
            x[i] = y[at];
        else
            y[at] = x[i];
    }
}

/* ---- softmax ---- */

/* Which scores count, and how. */
struct scores_of {
    int64_t window, chunk;
    float cap;
    const float *sinks;
};

/* Grid (queries, heads, sequences); query i at position first + i.  p: scores, replaced by
 * their softmax, 0 where masked; g: gradient with respect to p, replaced by that
 * with respect to the scores.  The derivative of a soft cap is that of the capped
 * score, which is found again from its exponential. */
static __global__ void __launch_bounds__(ROW)
    softmax_kernel(float *p, float *g, int ld, int queries, int first, int keys,
                   struct scores_of a)
{
    int64_t head = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
    int64_t row = head * queries + blockIdx.x;
    int end = first + (int)blockIdx.x + 1;
    int from = a.chunk ? (end - 1) / (int)a.chunk * (int)a.chunk :
               a.window && end > a.window ? end - (int)a.window :
                                            0;
    float most = -INFINITY, sink = a.sinks ? a.sinks[blockIdx.y] : -INFINITY;
    double sum = 0, dot = 0;

    p += row * ld;
    g += row * ld;
    for (int k = from + threadIdx.x; k < end; k += ROW) {
        if (a.cap > 0)
            p[k] = a.cap * tanhf(p[k] / a.cap);
        most = fmaxf(most, p[k]);
    }
    most = fmaxf(block_most<ROW>(most), sink);
    for (int k = from + threadIdx.x; k < end; k += ROW) {
        p[k] = expf(p[k] - most);
        sum += (double)p[k];
    }
    sum = block_sum<ROW>(sum) + exp((double)(sink - most));
    for (int k = from + threadIdx.x; k < end; k += ROW) {
        p[k] = (float)((double)p[k] / sum);
        dot += (double)p[k] * (double)g[k];
    }
    dot = block_sum<ROW>(dot);
    for (int k = threadIdx.x; k < keys; k += ROW) {
        bool seen = k >= from && k < end;
        float slope = 1, t;

        if (seen && a.cap > 0 && p[k] > 0) {
            t = (most + logf((float)((double)p[k] * sum))) / a.cap;
            slope = fmaxf(1 - t * t, 0);
        }
        g[k] = seen ? p[k] * (g[k] - (float)dot) * slope : 0;
        p[k] = seen ? p[k] : 0;
    }
}

/* ---- sequences ---- */

struct sequence {
    const struct backward_attend *a;
    int64_t row, n; /* first row; rows of a sequence */
    int64_t count;  /* of them */
    float *q, *k, *v,
        *go; /* [count, heads or kv, n, d or v_dim], q and k turned */
    float *gq, *gk, *gv; /* gradients with respect to q, k and v */
    float *p, *gs;       /* [count, heads, block, n] */
    int64_t block;       /* queries of a block */
};

/* One of the products over all heads of keys and all sequences. */
static int over_heads(struct cuda_context *c, const struct sequence *s,
                      struct backward_product p, struct err *e)
{
    p.count = (int)(s->a->n_kv_heads * s->count);
    p.rounded = s->a->rounded;
    return backward_multiply(c, p, e);
}

/* How many query heads of a head of keys are one matrix. */
static int64_t heads_together(const struct sequence *s, int64_t rows)
{
    return rows == s->n ? s->a->n_heads / s->a->n_kv_heads : 1;
}

/* Scores and their gradients of queries first..first+rows-1, and what follows of
 * them. */
static int scores(struct cuda_context *c, const struct sequence *s,
                  int64_t first, int64_t rows, struct err *e)
{
    const struct backward_attend *a = s->a;
    int64_t group = a->n_heads / a->n_kv_heads, d = a->head_dim;
    int64_t v = a->v_dim, keys = first + rows, plane = rows * s->n;
    int64_t together = heads_together(s, rows);

    for (int64_t i = 0; i < group; i += together) {
        struct backward_product p = {};
        int rc;

        p.tb = true;
        p.m = together * rows;
        p.n = keys;
        p.k = p.lda = p.ldb = d;
        p.alpha = a->scale;
        p.a = s->q + (i * s->n + first) * d;
        p.stride_a = group * s->n * d;
        p.b = s->k;
        p.stride_b = s->n * d;
        p.c = s->p + i * plane;
        p.ldc = s->n;
        p.stride_c = group * plane;
        if ((rc = over_heads(c, s, p, e)) < 0)
            return rc;
        p.k = p.lda = p.ldb = v;
        p.alpha = 1;
        p.a = s->go + (i * s->n + first) * v;
        p.stride_a = group * s->n * v;
        p.b = s->v;
        p.stride_b = s->n * v;
        p.c = s->gs + i * plane;
        if ((rc = over_heads(c, s, p, e)) < 0)
            return rc;
    }
    softmax_kernel<<<dim3((unsigned)rows, (unsigned)a->n_heads,
                          (unsigned)s->count),
                     ROW, 0, c->stream>>>(
        s->p, s->gs, (int)s->n, (int)rows, (int)first, (int)keys,
        { a->window, a->chunk, a->cap, a->sinks });
    LAUNCHED();
    return 0;
}

/* gV += Pᵀ gO, gK += scale gSᵀ Q, gQ = scale gS K of these queries. */
static int gradients(struct cuda_context *c, const struct sequence *s,
                     int64_t first, int64_t rows, struct err *e)
{
    const struct backward_attend *a = s->a;
    int64_t group = a->n_heads / a->n_kv_heads, d = a->head_dim;
    int64_t v = a->v_dim, keys = first + rows, plane = rows * s->n;
    int64_t together = heads_together(s, rows);

    for (int64_t i = 0; i < group; i += together) {
        struct backward_product p = {};
        int rc;

        p.ta = true;
        p.m = keys;
        p.k = together * rows;
        p.n = p.ldb = p.ldc = v;
        p.alpha = 1;
        p.a = s->p + i * plane;
        p.lda = s->n;
        p.stride_a = group * plane;
        p.b = s->go + (i * s->n + first) * v;
        p.stride_b = group * s->n * v;
        p.beta = 1; /* they begin with zeros */
        p.c = s->gv;
        p.stride_c = s->n * v;
        if ((rc = over_heads(c, s, p, e)) < 0)
            return rc;
        p.n = p.ldb = p.ldc = d;
        p.alpha = a->scale;
        p.a = s->gs + i * plane;
        p.b = s->q + (i * s->n + first) * d;
        p.stride_b = group * s->n * d;
        p.c = s->gk;
        p.stride_c = s->n * d;
        if ((rc = over_heads(c, s, p, e)) < 0)
            return rc;
        p.ta = false;
        p.m = together * rows;
        p.k = keys;
        p.b = s->k;
        p.stride_b = s->n * d;
        p.beta = 0;
        p.c = s->gq + (i * s->n + first) * d;
        p.stride_c = group * s->n * d;
        if ((rc = over_heads(c, s, p, e)) < 0)
            return rc;
    }
    return 0;
}

/* Heads of x, the rows of the sequences, one behind the other in y; or back. */
static int part_heads(struct cuda_context *c, const struct sequence *s,
                      const float *x, float *y, int64_t heads, bool back,
                      struct err *e)
{
    int64_t dim = s->a->v_dim, all = s->count * s->n * heads * dim;

    part_kernel<<<blocks_for(all), ROW, 0, c->stream>>>(
        (float *)x + s->row * heads * dim, y, (int)heads, s->n, dim, all, back);
    LAUNCHED();
    return 0;
}

static struct rotation rotation_of(const struct sequence *s, bool keys)
{
    const struct backward_attend *a = s->a;
    int64_t heads = keys ? a->n_kv_heads : a->n_heads;

    return { (keys ? a->k : a->q) + s->row * heads * a->head_dim,
             keys ? s->k : s->q,
             (int)heads,
             (int)a->head_dim,
             (int)a->rotary_at,
             (int)a->rotary,
             a->pairs,
             keys ? a->k_norm : a->q_norm,
             a->cs,
             a->eps,
             keys ? NULL : a->growth,
             (int)s->n };
}

static int run(struct cuda_context *c, const struct sequence *s, struct err *e)
{
    const struct backward_attend *a = s->a;
    struct rotation q = rotation_of(s, false), k = rotation_of(s, true);
    int64_t d = a->head_dim, v = a->v_dim, all = s->count * s->n;
    size_t keys = (size_t)(all * a->n_kv_heads) * sizeof(float);
    int rc;

    if ((rc = turn(c, &q, all, false, e)) < 0 ||
        (rc = turn(c, &k, all, false, e)) < 0 ||
        (rc = part_heads(c, s, a->v, s->v, a->n_kv_heads, false, e)) < 0 ||
        (rc = part_heads(c, s, a->go, s->go, a->n_heads, false, e)) < 0)
        return rc;
    CUDA_TRY(cudaMemsetAsync(s->gk, 0, keys * (size_t)d, c->stream));
    CUDA_TRY(cudaMemsetAsync(s->gv, 0, keys * (size_t)v, c->stream));
    for (int64_t i = 0; i < s->n; i += s->block) {
        int64_t rows = s->n - i < s->block ? s->n - i : s->block;

        if ((rc = scores(c, s, i, rows, e)) < 0 ||
            (rc = gradients(c, s, i, rows, e)) < 0)
            return rc;
    }
    q.y = s->gq;
    k.y = s->gk;
    if ((rc = turn(c, &q, all, true, e)) < 0 ||
        (rc = turn(c, &k, all, true, e)) < 0)
        return rc;
    return part_heads(c, s, a->v, s->gv, a->n_kv_heads, true, e);
}

/* Queries of a block: whole sequences where their scores fit. */
static int64_t block_of(int64_t heads, int64_t n)
{
    int64_t most = GRADIENT_SCORES / (2 * heads * n * (int64_t)sizeof(float));

    most = most < QUERIES ? most / 16 * 16 : (int64_t)QUERIES;
    most = most > 16 ? most : 16;
    return most < n ? most : n;
}

/* Sequences from number i on that run together: of equal length, with at most
 * BATCH_ROWS rows and GRADIENT_SCORES bytes of scores, or one. */
static int64_t count_of(const struct backward_attend *a, int64_t i)
{
    int64_t n = a->first[i + 1] - a->first[i], count = 1;
    int64_t block = n < QUERIES ? n : (int64_t)QUERIES;
    int64_t bytes = 2 * a->n_heads * block * n * (int64_t)sizeof(float);

    while (i + count < a->n_sequences &&
           a->first[i + count + 1] - a->first[i + count] == n &&
           (count + 1) * n <= BATCH_ROWS &&
           (count + 1) * bytes <= GRADIENT_SCORES)
        count++;
    return count;
}

int backward_attend(struct cuda_context *c, const struct backward_attend *a,
                    struct err *e)
{
    struct backward_state *b = backward_state();
    int64_t q = a->n_heads * a->head_dim, k = a->n_kv_heads * a->head_dim,
            v = a->n_kv_heads * a->v_dim, o = a->n_heads * a->v_dim;

    if (a->head_dim > DIMS)
        return err_set(e, E_CONFIG, "cuda: heads of %lld: want %d at most",
                       (long long)a->head_dim, (int)DIMS);
    for (int64_t i = 0, count; i < a->n_sequences; i += count) {
        struct sequence s = { a, a->first[i], a->first[i + 1] - a->first[i] };
        int64_t plane, all;
        int rc;

        s.count = count = count_of(a, i);
        if (!s.n)
            continue;
        all = s.count * s.n;
        s.block = block_of(s.count * a->n_heads, s.n);
        plane = s.count * a->n_heads * s.block * s.n;
        if ((rc = buffer_need(c, &b->work,
                              (size_t)(all * (2 * q + 2 * k + 2 * v + o)) *
                                  sizeof(float),
                              e)) < 0 ||
            (rc = buffer_need(c, &b->scores, 2 * (size_t)plane * sizeof(float),
                              e)) < 0)
            return rc;
        s.q = (float *)b->work.data;
        s.k = s.q + all * q;
        s.gq = s.k + all * k;
        s.gk = s.gq + all * q;
        s.v = s.gk + all * k;
        s.gv = s.v + all * v;
        s.go = s.gv + all * v;
        s.p = (float *)b->scores.data;
        s.gs = s.p + plane;
        if ((rc = run(c, &s, e)) < 0)
            return rc;
    }
    return 0;
}
