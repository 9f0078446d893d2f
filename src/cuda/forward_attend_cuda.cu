/* forward_attend_cuda.cu - attention of a batch of sequences: head norms and
 * rotary embedding in place, then softmax attention: of one new token a sequence
 * by forward_attend_decode_cuda.cu, on tensor cores for the sizes that
 * forward_attend_wgmma_cuda.cu or _mma_cuda.cu has, else, and with soft caps or
 * sinks, by the plain kernel here, with a block of threads per query and head. */
#include "cuda/forward_internal.cuh"

#include <stdlib.h>
#include <string.h>

enum {
    DIMS = 512,   /* of a head, at most */
    ROTATORS = 4, /* warps of a block that rotate heads */
    THREADS = 128 /* of a block of the plain kernel, one key each at a time */
};

/* ---- the table: positions of rows, and blocks of queries ---- */

struct table {
    int *position; /* [rows]: in its sequence */
    int *sequence; /* [rows]: row of its first token's key */
    struct attend_block *block;
    int blocks;
};

/* Queries of the block that begins at row p of n: of a chunk alone. */
static int block_rows(const struct forward_attend *a, int64_t p, int64_t n)
{
    int64_t most = n - p < ATTEND_QUERIES ? n - p : (int64_t)ATTEND_QUERIES;
    int64_t left = a->chunk ? a->chunk - (a->past + p) % a->chunk : most;

    return (int)(left < most ? left : most);
}

static int64_t count_blocks(const struct forward_attend *a)
{
    int64_t blocks = 0;

    for (int64_t i = 0; i < a->n_sequences; i++) {
        int64_t n = a->first[i + 1] - a->first[i];

        for (int64_t p = 0; p < n; p += block_rows(a, p, n))
            blocks++;
    }
    return blocks;
}

/* A chunk is to the kernels a sequence of its own. */
static void fill_table(const struct forward_attend *a, const struct table *t)
{
    struct attend_block *b = t->block;

    for (int64_t i = 0; i < a->n_sequences; i++) {
        int first = (int)a->first[i], n = (int)(a->first[i + 1] - a->first[i]);
        int keys = a->each ? (int)(i * a->each) : first;

        for (int p = 0; p < n; p++) {
            t->position[first + p] = (int)a->past + p;
            t->sequence[first + p] = keys;
        }
        for (int p = 0; p < n; p += block_rows(a, p, n)) {
            int at = (int)a->past + p;
            int before = a->chunk ? at - at % (int)a->chunk : 0;

            *b++ = (struct attend_block){ first + p, at - before,
                                          block_rows(a, p, n), keys + before };
        }
    }
}

/* Build the table, and upload it only if it differs from the last one. */
static int make_table(struct cuda_context *c, const struct forward_attend *a,
                      struct table *t, struct err *e)
{
    int64_t blocks = count_blocks(a);
    size_t rows = (size_t)a->rows * sizeof(int);
    size_t bytes = 2 * rows + (size_t)blocks * sizeof(struct attend_block);
    struct forward_state *s;
    struct table host;
    char *p;
    int rc;

    if ((rc = forward_state(c, &s, e)) < 0)
        return rc;
    p = (char *)mem_alloc(bytes + 1, "cuda", e);
    if (!p)
        return e->code;
    host = (struct table){ (int *)p, (int *)(p + rows),
                           (struct attend_block *)(p + 2 * rows), (int)blocks };
    fill_table(a, &host);
    if (bytes == s->table_bytes && !memcmp(p, s->table_host, bytes)) {
        free(p);
    } else {
        free(s->table_host);
        s->table_host = p;
        s->table_bytes = 0;
        if ((rc = buffer_need(c, &s->table, bytes, e)) < 0 ||
            (rc = upload(c, s->table.data, p, bytes, e)) < 0)
            return rc;
        s->table_bytes = bytes;
    }
    p = (char *)s->table.data;
    *t = (struct table){ (int *)p, (int *)(p + rows),
                         (struct attend_block *)(p + 2 * rows), (int)blocks };
    return 0;
}

/* ---- head norms and rotary embedding ---- */

struct rotation {
    void *x;
    int64_t row, head; /* strides */
    int heads, dim, at, rotary;
    bool pairs;
    const float *norm, *cs;
    float eps;
    const int *position;
    const float *by; /* by position: the result's factor, where nothing turns;
                      * NULL: 1 */
};

/* In place, one warp per row and head: the head is read into shared memory
 * before any of it is written.  Block: 32 x ROTATORS threads, grid rows * heads
 * / ROTATORS. */
template <class T>
static __global__ void rotate_kernel(struct rotation t, int64_t all)
{
    __shared__ float room[ROTATORS][DIMS];
    int64_t i = (int64_t)blockIdx.x * ROTATORS + threadIdx.y;
    float *x = room[threadIdx.y], sum = 0;
    int lane = threadIdx.x, half = t.rotary / 2;
    const float *cs;
    T *p;

    if (i >= all)
        return;
    p = (T *)t.x + i / t.heads * t.row + i % t.heads * t.head;
    cs = t.cs + (int64_t)t.position[i / t.heads] * t.rotary;
    for (int k = lane; k < t.dim; k += WARP) {
        x[k] = load(p + k);
        sum += x[k] * x[k];
    }
    if (t.norm) {
        float scale = 1.0f / sqrtf(warp_sum(sum) / (float)t.dim + t.eps);

        for (int k = lane; k < t.dim; k += WARP)
            x[k] = rounded<T>(
                __fmul_rn(rounded<T>(__fmul_rn(x[k], scale)), t.norm[k]));
    }
    __syncwarp();
    for (int k = lane; k < half; k += WARP) {
        float a = x[t.at + (t.pairs ? 2 * k : k)];
        float b = x[t.at + (t.pairs ? 2 * k + 1 : half + k)];
        float cosine = cs[k], sine = cs[half + k];

        store(p + t.at + k,
              __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)));
        store(p + t.at + half + k,
              __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)));
    }
    for (int k = lane; (t.norm || t.by) && k < t.dim; k += WARP)
        if (k < t.at || k >= t.at + t.rotary)
            store(p + k,
                  t.by ? __fmul_rn(x[k], t.by[t.position[i / t.heads]]) : x[k]);
}

template <class T>
static int rotate(struct cuda_context *c, const struct rotation *t,
                  int64_t rows, struct err *e)
{
    int64_t all = rows * t->heads, blocks = (all + ROTATORS - 1) / ROTATORS;

    if (!t->norm && !t->by && !t->rotary)
        return 0;
    rotate_kernel<T>
        <<<(unsigned)blocks, dim3(WARP, ROTATORS), 0, c->stream>>>(*t, all);
    LAUNCHED();
    return 0;
}

static int rotate_queries(struct cuda_context *c,
                          const struct forward_attend *a, const struct table *t,
                          struct err *e)
{
    struct rotation q = { (void *)a->q.p,  a->q.row,         a->q.head,
                          (int)a->n_heads, (int)a->head_dim, (int)a->rotary_at,
                          (int)a->rotary,  a->pairs,         a->q_norm,
                          a->cs,           a->eps,           t->position,
                          a->growth };

    return BY_DTYPE(a->dtype, rotate, c, &q, a->rows, e);
}

/* Those of the batch, which are rows from `at` on. */
static int rotate_keys(struct cuda_context *c, const struct forward_attend *a,
                       const struct table *t, int64_t at, struct err *e)
{
    int64_t item = a->dtype == DT_BF16 ? 2 : 4;
    struct rotation k = { (void *)a->k.p,
                          a->k.row,
                          a->k.head,
                          (int)a->n_kv_heads,
                          (int)a->head_dim,
                          (int)a->rotary_at,
                          (int)a->rotary,
                          a->pairs,
                          a->k_norm,
                          a->cs,
                          a->eps,
                          t->position,
                          NULL };

    if (a->tail.p) {
        k.x = (void *)a->tail.p;
        k.row = a->tail.row;
        k.heads = 1;
        k.dim = (int)a->tail_dim;
        k.at = 0;
    }
    k.x = (char *)k.x + at * k.row * item;
    return BY_DTYPE(a->dtype, rotate, c, &k, a->rows, e);
}

/* ---- the plain kernel, for any sizes ---- */

/* Grid (rows, heads).  THREADS keys at a time: each thread computes one key's
 * score, then accumulates DIMS / THREADS dims of the output.  Softmax weights
 * are rounded to the element type before they multiply values, as in the
 * tensor-core kernel. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    plain_kernel(struct attend_args a, const int *position, const int *sequence)
{
    __shared__ float q[DIMS], p[THREADS];
    int64_t row = blockIdx.x, kv = blockIdx.y / a.group;
    int at = position[row], me = threadIdx.x;
    int before = a.chunk ? at - at % a.chunk : 0;
    int64_t first = sequence[row] + before;
    float out[DIMS / THREADS] = {}, most = -INFINITY, sum = 0;
    const T *tail = (const T *)a.tail;
    int begin = a.window && at >= a.window ? at - (int)a.window + 1 : 0;

    at -= before;
    for (int i = me; i < a.dim; i += THREADS)
        q[i] = load((const T *)a.q + row * a.q_row + blockIdx.y * a.q_head + i);
    __syncthreads();
    for (int k0 = begin; k0 <= at; k0 += THREADS) {
        int64_t key = first + k0 + me;
        float score = -INFINITY, now, shrink;
        const T *k = (const T *)a.k + key * a.k_row + kv * a.k_head;

        if (k0 + me <= at) {
            score = 0;
            for (int i = 0; i < a.key_dim; i++)
                score += q[i] * load(k + i);
            for (int i = a.key_dim; i < a.dim; i++)
                score += q[i] * load(tail + key * a.tail_row + i - a.key_dim);
            score = a.cap > 0 ? a.cap * tanhf(score * (a.scale / a.cap)) :
                                score * a.scale;
        }
        now = fmaxf(most, block_most<THREADS>(score));
        shrink = expf(most - now);
        score = expf(score - now);
        p[me] = rounded<T>(score);
        sum = sum * shrink + block_sum<THREADS>(score);
        most = now;
        for (int d = 0; d < DIMS / THREADS; d++) {
            int col = me + d * THREADS, n = min(at - k0 + 1, (int)THREADS);
            const T *v =
                (const T *)a.v + (first + k0) * a.v_row + kv * a.v_head + col;

            out[d] *= shrink;
            for (int j = 0; col < a.v_dim && j < n; j++)
                out[d] += p[j] * load(v + j * a.v_row);
        }
        __syncthreads();
    }
    if (a.sinks)
        sum += expf(a.sinks[blockIdx.y] - most);
    for (int d = 0; d < DIMS / THREADS; d++)
        if (me + d * THREADS < a.v_dim)
            store((T *)a.out + row * a.out_row + blockIdx.y * a.v_dim + me +
                      d * THREADS,
                  out[d] / sum);
}

template <class T>
static int plain(struct cuda_context *c, const struct attend_args *a,
                 const struct table *t, int64_t rows, struct err *e)
{
    plain_kernel<T>
        <<<dim3((unsigned)rows, (unsigned)a->heads), THREADS, 0, c->stream>>>(
            *a, t->position, t->sequence);
    LAUNCHED();
    return 0;
}

/* ---- forward_attend() ---- */

static int check(const struct forward_attend *a, struct err *e)
{
    if (a->past && a->n_sequences != 1 && !a->each)
        return err_set(e, E_BUG, "cuda: several sequences that go on");
    if (a->past + a->rows > INT32_MAX / 2 ||
        a->each * a->n_sequences > INT32_MAX / 2 || a->head_dim > DIMS ||
        a->v_dim > DIMS)
        return err_set(
            e, E_CONFIG, "cuda: heads of %lld: want %d at most",
            (long long)(a->head_dim > a->v_dim ? a->head_dim : a->v_dim),
            (int)DIMS);
    if (a->chunk && a->window)
        return err_set(e, E_BUG, "cuda: chunks with a window");
    if (a->growth && a->rotary)
        return err_set(e, E_BUG, "cuda: queries that grow and turn");
    if (a->tail.p &&
        (a->k_norm ||
         (a->rotary && (a->rotary != a->tail_dim ||
                        a->rotary_at != a->head_dim - a->tail_dim))))
        return err_set(e, E_CONFIG, "cuda: keys whose tail turns in part");
    return 0;
}

int forward_attend(struct cuda_context *c, const struct forward_attend *a,
                   struct err *e)
{
    struct attend_args k = { a->q.p,   a->k.p,    a->v.p,     a->tail.p,
                             a->q.row, a->q.head, a->k.row,   a->k.head,
                             a->v.row, a->v.head, a->tail.row };
    struct table t = {};
    int rc;

    if (!a->rows)
        return 0;
    if ((rc = check(a, e)) < 0 || (rc = make_table(c, a, &t, e)) < 0 ||
        (rc = rotate_queries(c, a, &t, e)) < 0 ||
        (!a->turned && (rc = rotate_keys(c, a, &t, a->past, e)) < 0))
        return rc;
    k.dim = (int)a->head_dim;
    k.key_dim = (int)(a->head_dim - (a->tail.p ? a->tail_dim : 0));
    k.v_dim = (int)a->v_dim;
    k.group = (int)(a->n_heads / a->n_kv_heads);
    k.window = a->window;
    k.scale = a->scale;
    k.out_row = a->n_heads * a->v_dim;
    k.out = a->out;
    k.block = t.block;
    k.blocks = t.blocks;
    k.heads = (int)a->n_heads;
    k.chunk = (int)a->chunk;
    k.cap = a->cap;
    k.sinks = a->sinks;
    if (attend_decode_takes(a))
        return attend_decode(c, a, &k, e);
    /* several tokens of each of several caches are the plain kernel's */
    if (a->cap <= 0 && !a->sinks && !a->each && attend_mma_takes(c, a))
        return attend_wgmma_takes(c, a) ? attend_wgmma(c, a, &k, e) :
                                          attend_mma(c, &k, e);
    return BY_DTYPE(a->dtype, plain, c, &k, &t, a->rows, e);
}

int forward_turn(struct cuda_context *c, const struct forward_attend *a,
                 struct err *e)
{
    struct table t = {};
    int rc;

    if (!a->rows)
        return 0;
    if ((rc = check(a, e)) < 0 || (rc = make_table(c, a, &t, e)) < 0)
        return rc;
    return rotate_keys(c, a, &t, 0, e);
}
