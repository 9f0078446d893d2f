/* forward_attend_decode_cuda.cu - attention of one new token a sequence with the
 * keys and values of a KV cache.
 *
 * A block has a sequence and up to G query heads that share a key-value head, so
 * that the cache is read once for all of them; a longer group is several blocks.
 * Its warps take tiles of 32 keys in turn.  Four lanes read a key, 16 bytes each,
 * eight keys at once; after the sums over these lanes each lane has the scores of
 * one key of the tile, and its softmax weights.  Then the lanes read rows of
 * values, 16 bytes each, and accumulate the output of their dims.  Each warp has
 * its own maximum, sum and output, which the block merges in the order of warps.
 *
 * More than ALONE keys are cut into parts of PART, a block each, which a second
 * kernel merges in their order.  The cut depends on nothing but the number of
 * keys, and there are no atomics: a sequence has the same bits in any batch and
 * on any GPU of an architecture.
 *
 * Weights are rounded to the element type before they multiply values, and summed
 * before that, as in the plain kernel.
 *
 * Floor: a read of the cache, (dim + v_dim) elements for each visible key and
 * key-value head. */
#include "cuda/forward_internal.cuh"

enum {
    WARPS = 4,
    THREADS = WARPS * WARP,
    TILE = WARP, /* keys of a warp at a time */
    QUAD = 4,  /* lanes that read a key, and keys that a lane reads of a tile */
    AHEAD = 8, /* rows of values that a lane loads at once */
    MOST = 0,  /* of what was seen, in floats: the maximum score, */
    SUM = 1,   /* the sum of weights, */
    OUT = 2,   /* and the output times that */
    ALONE = 512, /* keys of one block */
    PART = 256
};

struct decode {
    struct attend_args a;
    int64_t each;            /* rows of keys from one sequence to the next */
    int begin, end;          /* positions of the keys that all sequences see */
    int part, parts, pieces; /* keys of a part; parts of the keys; of a group */
    int lanes;  /* that read a row of values: a power of two, AHEAD at least */
    float *met; /* [rows, heads, parts, OUT + v_dim]; of one part NULL */
};

/* What a lane has of each head: the warp's maximum score, its part of the sum of
 * weights, and the output of the dims that it reads in its rows of values. */
template <class T, int G, int W> struct seen {
    float most[G], sum[G], out[G][W][pack<T>::n];
};

/* 16 bytes; zeros if they are not there. */
static __device__ __forceinline__ uint4 load_pack(const void *p, bool there)
{
    return there ? __ldg((const uint4 *)p) : make_uint4(0, 0, 0, 0);
}

/* Elements 4 i to 4 i + 3 of a pack: half of one of bf16, a whole one of f32. */
template <class T>
static __device__ __forceinline__ float4 four(const uint4 &x, int i)
{
    unsigned a = i ? x.z : x.x, b = i ? x.w : x.y;

    if (sizeof(T) == sizeof(float))
        return make_float4(__uint_as_float(x.x), __uint_as_float(x.y),
                           __uint_as_float(x.z), __uint_as_float(x.w));
    return make_float4(
        __uint_as_float(a << 16), __uint_as_float(a & 0xffff0000),
        __uint_as_float(b << 16), __uint_as_float(b & 0xffff0000));
}

/* sum + x y, in the order of elements. */
static __device__ __forceinline__ float add_dot(float4 x, float4 y, float sum)
{
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

/* s[g][j] += the product of head g's query with a pack of key j; q: that pack of
 * the first head's. */
template <class T, int G>
static __device__ __forceinline__ void add_products(const uint4 (&x)[QUAD],
                                                    const float *q, int q_row,
                                                    float (&s)[G][QUAD])
{
#pragma unroll
    for (int i = 0; i < pack<T>::n / 4; i++) {
        float4 k[QUAD];

#pragma unroll
        for (int j = 0; j < QUAD; j++)
            k[j] = four<T>(x[j], i);
#pragma unroll
        for (int g = 0; g < G; g++) {
            float4 y = *(const float4 *)(q + g * q_row + 4 * i);

#pragma unroll
            for (int j = 0; j < QUAD; j++)
                s[g][j] = add_dot(y, k[j], s[g][j]);
        }
    }
}

/* s[g][j] += this lane's part of the product of head g's query, in shared memory,
 * with row lane / QUAD + 8 j of `keys`, of so many packs; a row behind the last is
 * the last. */
template <class T, int G>
static __device__ __forceinline__ void
add_scores(const T *k, int k_row, int keys, int packs, const float *q,
           int q_row, float (&s)[G][QUAD])
{
    const int n = pack<T>::n;
    int lane = threadIdx.x % WARP, row[QUAD];

#pragma unroll
    for (int j = 0; j < QUAD; j++)
        row[j] = min(lane / QUAD + TILE / QUAD * j, keys - 1) * k_row;
    for (int i = lane % QUAD; i < packs; i += 2 * QUAD) {
        uint4 x[2][QUAD];

#pragma unroll
        for (int p = 0; p < 2; p++)
#pragma unroll
            for (int j = 0; j < QUAD; j++)
                x[p][j] = load_pack(k + row[j] + (i + p * QUAD) * n,
                                    i + p * QUAD < packs);
#pragma unroll
        for (int p = 0; p < 2; p++)
            add_products<T>(x[p], q + (i + p * QUAD) * n, q_row, s);
    }
}

/* The sum over QUAD lanes of x[number of this lane in them]. */
static __device__ __forceinline__ float sum_own(const float (&x)[QUAD])
{
    bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
    float a = high ? x[2] : x[0], b = high ? x[3] : x[1];

    a += __shfl_xor_sync(~0u, high ? x[0] : x[2], 2);
    b += __shfl_xor_sync(~0u, high ? x[1] : x[3], 2);
    return (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
}

/* The scores of a tile's keys become weights[G][TILE]; what was seen shrinks
 * where the maximum has grown. */
template <class T, int G, int W>
static __device__ __forceinline__ void
soften(const struct attend_args &a, int keys, const float (&s)[G][QUAD],
       float *weights, struct seen<T, G, W> &t)
{
    int lane = threadIdx.x % WARP;
    int own = lane / QUAD + TILE / QUAD * (lane % QUAD);

#pragma unroll
    for (int g = 0; g < G; g++) {
        float x = sum_own(s[g]), now, shrink;

        x = a.cap > 0 ? a.cap * tanhf(x * (a.scale / a.cap)) : x * a.scale;
        x = own < keys ? x : -INFINITY;
        now = x;
        for (int i = WARP / 2; i; i >>= 1)
            now = fmaxf(now, __shfl_xor_sync(~0u, now, i));
        now = fmaxf(now, t.most[g]);
        shrink = expf(t.most[g] - now);
        x = expf(x - now);
        weights[g * TILE + own] = rounded<T>(x);
        t.most[g] = now;
        t.sum[g] = t.sum[g] * shrink + x;
#pragma unroll
        for (int i = 0; i < W * pack<T>::n; i++)
            t.out[g][i / pack<T>::n][i % pack<T>::n] *= shrink;
    }
}

/* The output of the lane's packs w += weights[G][TILE] times four packs of values,
 * of consecutive rows. */
template <class T, int G, int W>
static __device__ __forceinline__ void
add_four(const uint4 *x, const float *weights, int w, struct seen<T, G, W> &t)
{
#pragma unroll
    for (int i = 0; i < pack<T>::n / 4; i++) {
        float4 y[4] = { four<T>(x[0], i), four<T>(x[1], i), four<T>(x[2], i),
                        four<T>(x[3], i) };

#pragma unroll
        for (int g = 0; g < G; g++) {
            float4 p = *(const float4 *)(weights + g * TILE);
            float *to = t.out[g][w] + 4 * i;

            to[0] =
                add_dot(p, make_float4(y[0].x, y[1].x, y[2].x, y[3].x), to[0]);
            to[1] =
                add_dot(p, make_float4(y[0].y, y[1].y, y[2].y, y[3].y), to[1]);
            to[2] =
                add_dot(p, make_float4(y[0].z, y[1].z, y[2].z, y[3].z), to[2]);
            to[3] =
                add_dot(p, make_float4(y[0].w, y[1].w, y[2].w, y[3].w), to[3]);
        }
    }
}

/* Add the values of a tile by their weights.  Each `lanes` lanes have as many
 * consecutive rows; a row behind the last is the last, whose weight is 0 there. */
template <class T, int G, int W>
static __device__ __forceinline__ void
add_values(const T *v, int v_row, int keys, int packs, int lanes,
           const float *weights, struct seen<T, G, W> &t)
{
    int at = threadIdx.x & (lanes - 1), first = threadIdx.x % WARP - at;

#pragma unroll
    for (int w = 0; w < W; w++, at += WARP)
        for (int i = first; at < packs && i < first + min(lanes, keys);
             i += AHEAD) {
            uint4 x[AHEAD];

#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                x[j] = __ldg((const uint4 *)(v + min(i + j, keys - 1) * v_row) +
                             at);
#pragma unroll
            for (int j = 0; j < AHEAD; j += 4)
                add_four(x + j, weights + i + j, w, t);
        }
}

/* to[G][OUT + v_dim] = what the warp has seen. */
template <class T, int G, int W>
static __device__ __forceinline__ void leave(float *to, int v_dim, int lanes,
                                             const struct seen<T, G, W> &t)
{
    int lane = threadIdx.x % WARP;
    const int n = pack<T>::n;

#pragma unroll
    for (int g = 0; g < G; g++, to += OUT + v_dim) {
        float sum = warp_sum(t.sum[g]);

        if (!lane) {
            to[MOST] = t.most[g];
            to[SUM] = sum;
        }
#pragma unroll
        for (int i = 0; i < W * n; i++) {
            float x = t.out[g][i / n][i % n];
            int d = (lane + i / n * WARP) * n + i % n;

            for (int k = lanes; k < WARP; k <<= 1)
                x += __shfl_xor_sync(~0u, x, k);
            if (lane < lanes && d < v_dim)
                to[OUT + d] = x;
        }
    }
}

struct merged {
    float most, sum, out; /* out: of one dim */
};

/* Of what n warps or parts have seen, `row` floats apart, in their order. */
static __device__ struct merged merge(const float *met, int n, int row, int d)
{
    struct merged m = { -INFINITY, 0, 0 };

    for (int i = 0; i < n; i++)
        m.most = fmaxf(m.most, met[(int64_t)i * row + MOST]);
    for (int i = 0; i < n; i++, met += row) {
        float by = expf(met[MOST] - m.most);

        m.sum += by * met[SUM];
        m.out += by * met[OUT + d];
    }
    return m;
}

template <class T>
static __device__ void finish(const struct attend_args &a, int64_t row,
                              int head, int d, const struct merged &m)
{
    float sum = a.sinks ? m.sum + expf(a.sinks[head] - m.most) : m.sum;

    store((T *)a.out + row * a.out_row + head * a.v_dim + d, m.out / sum);
}

/* Floats between the queries of two heads in shared memory: add_scores() reads up
 * to QUAD packs of zeros behind a query. */
template <class T> static __host__ __device__ int query_row(int dim)
{
    return dim + QUAD * pack<T>::n;
}

/* Floats of shared memory: the queries, then, in their place, what warps have
 * seen; behind them the weights of a tile of each warp. */
template <class T, int G>
static __host__ __device__ int shared_floats(const struct attend_args &a)
{
    int queries = G * query_row<T>(a.dim);
    int seen = WARPS * G * (OUT + a.v_dim);

    return queries > seen ? queries : seen;
}

/* Blocks that a processor's registers have room for, at least. */
template <class T, int G, int W> static constexpr int blocks_at_once(void)
{
    return G * W * pack<T>::n > 32 ? 2 : 3;
}

/* Grid (pieces of key-value heads of rows, parts), THREADS threads. */
template <class T, int G, int W>
static __global__ void __launch_bounds__(THREADS, (blocks_at_once<T, G, W>()))
    decode_kernel(const __grid_constant__ struct decode d)
{
    extern __shared__ float4 memory[];
    const struct attend_args &a = d.a;
    const int n = pack<T>::n, of = a.heads / a.group * d.pieces;
    const int64_t row = blockIdx.x / of;
    const int kv = blockIdx.x % of / d.pieces;
    const int piece = blockIdx.x % d.pieces * G, head = kv * a.group + piece;
    const int heads = min(a.group - piece, G), warp = threadIdx.x / WARP;
    const int q_row = query_row<T>(a.dim), met_row = OUT + a.v_dim;
    const int begin = d.begin + blockIdx.y * d.part;
    const int end = min(begin + d.part, d.end);
    float *q = (float *)memory, *met = q;
    float *weights = q + shared_floats<T, G>(a) + warp * G * TILE;
    seen<T, G, W> t = {};

    for (int g = 0; g < G; g++) {
        const T *from = (const T *)a.q + row * a.q_row + (head + g) * a.q_head;

        t.most[g] = -INFINITY;
        for (int i = threadIdx.x; i < q_row; i += THREADS)
            q[g * q_row + i] = g < heads && i < a.dim ? load(from + i) : 0;
    }
    __syncthreads();
    for (int k0 = begin + warp * TILE; k0 < end; k0 += WARPS * TILE) {
        const int64_t key = row * d.each + k0;
        const int keys = min(end - k0, TILE);
        float s[G][QUAD] = {};

        add_scores((const T *)a.k + key * a.k_row + kv * a.k_head, (int)a.k_row,
                   keys, a.key_dim / n, q, q_row, s);
        if (a.tail)
            add_scores((const T *)a.tail + key * a.tail_row, (int)a.tail_row,
                       keys, (a.dim - a.key_dim) / n, q + a.key_dim, q_row, s);
        soften(a, keys, s, weights, t);
        __syncwarp();
        add_values((const T *)a.v + key * a.v_row + kv * a.v_head, (int)a.v_row,
                   keys, a.v_dim / n, d.lanes, weights, t);
        __syncwarp(); /* before the next tile's weights */
    }
    __syncthreads(); /* before the queries go */
    leave(met + warp * G * met_row, a.v_dim, d.lanes, t);
    __syncthreads();
    for (int g = 0; g < heads; g++)
        for (int i = threadIdx.x; i < a.v_dim; i += THREADS) {
            struct merged m = merge(met + g * met_row, WARPS, G * met_row, i);
            float *to;

            if (!d.met) {
                finish<T>(a, row, head + g, i, m);
                continue;
            }
            to = d.met +
                 ((row * a.heads + head + g) * d.parts + blockIdx.y) * met_row;
            to[MOST] = m.most; /* all threads' are equal */
            to[SUM] = m.sum;
            to[OUT + i] = m.out;
        }
}

/* Merge the parts of a row's head: grid (heads of rows), THREADS threads. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    merge_kernel(const __grid_constant__ struct decode d)
{
    const int row = OUT + d.a.v_dim;
    const float *met = d.met + (int64_t)blockIdx.x * d.parts * row;

    for (int i = threadIdx.x; i < d.a.v_dim; i += THREADS)
        finish<T>(d.a, blockIdx.x / d.a.heads, blockIdx.x % d.a.heads, i,
                  merge(met, d.parts, row, i));
}

/* W: packs of values that a lane reads of a row. */
template <class T, int G, int W>
static int run(struct cuda_context *c, struct decode *d, int64_t rows,
               struct err *e)
{
    size_t bytes = (size_t)(shared_floats<T, G>(d->a) + WARPS * G * TILE) * 4;
    int64_t kv = d->a.heads / d->a.group;

    d->pieces = (d->a.group + G - 1) / G;
    decode_kernel<T, G, W>
        <<<dim3((unsigned)(rows * kv * d->pieces), (unsigned)d->parts), THREADS,
           bytes, c->stream>>>(*d);
    LAUNCHED();
    if (d->met)
        merge_kernel<T>
            <<<(unsigned)(rows * d->a.heads), THREADS, 0, c->stream>>>(*d);
    LAUNCHED();
    return 0;
}

/* At most 64 numbers of the output a lane. */
static int run_bf16(struct cuda_context *c, struct decode *d, int64_t rows,
                    struct err *e)
{
    if (d->a.v_dim > 256)
        return run<bf16, 4, 2>(c, d, rows, e);
    if (d->a.group == 1)
        return run<bf16, 1, 1>(c, d, rows, e);
    return d->a.group <= 4 ? run<bf16, 4, 1>(c, d, rows, e) :
                             run<bf16, 8, 1>(c, d, rows, e);
}

static int run_f32(struct cuda_context *c, struct decode *d, int64_t rows,
                   struct err *e)
{
    return d->a.v_dim <= 128 ? run<float, 4, 1>(c, d, rows, e) :
           d->a.v_dim <= 256 ? run<float, 4, 2>(c, d, rows, e) :
                               run<float, 4, 4>(c, d, rows, e);
}

/* Whether rows consist of whole packs aligned to 16 bytes, and those of a tile
 * are less than 2^31 elements apart. */
template <class T>
static bool heads_fit(const struct forward_heads *h, int64_t dim)
{
    return !h->p || (aligned_rows((const T *)h->p, dim, h->row) &&
                     h->head % pack<T>::n == 0 && h->row < INT32_MAX / TILE);
}

template <class T> static bool all_fit(const struct forward_attend *a)
{
    return heads_fit<T>(&a->k, a->head_dim - (a->tail.p ? a->tail_dim : 0)) &&
           heads_fit<T>(&a->v, a->v_dim) && heads_fit<T>(&a->tail, a->tail_dim);
}

bool attend_decode_takes(const struct forward_attend *a)
{
    if (a->rows != a->n_sequences || (!a->each && (a->rows > 1 || !a->past)) ||
        a->rows * a->n_heads > INT32_MAX || a->past / PART >= 65535)
        return false;
    for (int64_t i = 0; i < a->rows; i++)
        if (a->first[i] != i)
            return false;
    return BY_DTYPE(a->dtype, all_fit, a);
}

int attend_decode(struct cuda_context *c, const struct forward_attend *a,
                  const struct attend_args *k, struct err *e)
{
    int at = (int)a->past, rc;
    int n = a->dtype == DT_BF16 ? pack<bf16>::n : pack<float>::n;
    struct decode d = { *k, a->each };
    struct forward_state *s;

    d.begin = a->chunk                     ? at - at % (int)a->chunk :
              a->window && at >= a->window ? at - (int)a->window + 1 :
                                             0;
    d.end = at + 1;
    d.part = d.end - d.begin <= ALONE ? (int)ALONE : (int)PART;
    d.parts = (d.end - d.begin + d.part - 1) / d.part;
    for (d.lanes = AHEAD; d.lanes < WARP && d.lanes * n < a->v_dim;)
        d.lanes *= 2;
    if (d.parts > 1) {
        size_t met = (size_t)(a->rows * a->n_heads) * (size_t)d.parts;

        if ((rc = forward_state(c, &s, e)) < 0 ||
            (rc = buffer_need(c, &s->parts, met * (OUT + (size_t)a->v_dim) * 4,
                              e)) < 0)
            return rc;
        d.met = (float *)s->parts.data;
    }
    return a->dtype == DT_BF16 ? run_bf16(c, &d, a->rows, e) :
                                 run_f32(c, &d, a->rows, e);
}
