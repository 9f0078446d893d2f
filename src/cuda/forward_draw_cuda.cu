/* forward_draw_cuda.cu - the next tokens of sequences, drawn where their logits are: of
 * all logits of a token, which are megabytes for hundreds of sequences, one number goes
 * to the host. */
#include "cuda/forward_internal.cuh"

enum { THREADS = 512, TILES = 1024 };

struct draw_job {
    float *y; /* [rows, vocab] products W x */
    int vocab, bans;
    float scale, cap;
    const int32_t *banned;
    const double *uniform;
    int32_t *ids;
};

static __device__ __forceinline__ float logit(const struct draw_job &j, float y)
{
    return j.cap > 0 ? j.cap * tanhf(j.scale * y / j.cap) : j.scale * y;
}

/* The tile of THREADS tokens in which the sum of exponentials passes *left, which
 * becomes what is left in it. */
static __device__ int find_tile(const double *tile, int tiles, double u,
                                double *left)
{
    double sum = 0;
    int last = 0;

    for (int t = 0; t < tiles; t++)
        sum += tile[t];
    *left = u * sum;
    for (int t = 0; t < tiles; t++) {
        if (tile[t] > 0)
            last = t;
        if (*left < tile[t])
            return t;
        *left -= tile[t];
    }
    *left = tile[last]; /* by rounding: its last token */
    return last;
}

/* A block per row. */
static __global__ void __launch_bounds__(THREADS)
    draw_kernel(const struct draw_job j)
{
    __shared__ double tile[TILES], left;
    __shared__ float some[THREADS];
    __shared__ int chosen;
    float *y = j.y + (int64_t)blockIdx.x * j.vocab, most = -INFINITY;
    int me = threadIdx.x, tiles = (j.vocab + THREADS - 1) / THREADS, id = 0;
    bool bad = false;

    for (int v = me; v < j.vocab; v += THREADS)
        bad |= !isfinite(y[v]);
    bad = __syncthreads_or(bad);
    for (int i = me; i < j.bans; i += THREADS)
        if (j.banned[i] >= 0 && j.banned[i] < j.vocab)
            y[j.banned[i]] = -INFINITY;
    __syncthreads();
    for (int v = me; v < j.vocab; v += THREADS)
        most = fmaxf(most, logit(j, y[v]));
    most = block_most<THREADS>(most);
    for (int t = 0; t < tiles; t++) {
        int v = t * THREADS + me;
        double sum = v < j.vocab && isfinite(y[v]) ?
                         (double)expf(logit(j, y[v]) - most) :
                         0;

        sum = block_sum<THREADS>(sum);
        if (!me)
            tile[t] = sum;
    }
    if (!me)
        chosen = find_tile(tile, tiles, j.uniform[blockIdx.x], &left);
    __syncthreads();
    id = chosen * THREADS + me;
    some[me] =
        id < j.vocab && isfinite(y[id]) ? expf(logit(j, y[id]) - most) : 0;
    __syncthreads();
    if (me)
        return;
    for (int k = 0; k < THREADS && left >= 0; k++) {
        if (some[k] > 0)
            id = chosen * THREADS + k;
        left -= (double)some[k];
    }
    j.ids[blockIdx.x] = bad ? -1 : id;
}

int forward_draw(struct cuda_context *c, const struct forward_draw *a,
                 struct err *e)
{
    size_t rows = (size_t)a->of.rows, bans = (size_t)a->bans;
    size_t bytes = rows * (sizeof(double) + sizeof(int32_t)) + bans * 4;
    struct draw_job j = { NULL, (int)a->of.n, (int)a->bans, a->scale, a->cap };
    struct forward_state *s;
    double *uniform;
    int rc;

    if (a->of.n > TILES * THREADS)
        return err_set(e, E_CONFIG, "cuda: draws from %d tokens at most",
                       TILES * THREADS);
    if ((rc = forward_state(c, &s, e)) < 0 ||
        (rc = forward_sums_there(c, &a->of, &j.y, e)) < 0 ||
        (rc = buffer_need(c, &s->routed, bytes, e)) < 0)
        return rc;
    uniform = (double *)s->routed.data;
    j.uniform = uniform;
    j.ids = (int32_t *)(uniform + rows);
    j.banned = j.ids + rows;
    if ((rc = upload(c, uniform, a->uniform, rows * sizeof(*uniform), e)) < 0 ||
        (rc = upload(c, j.ids + rows, a->banned, bans * 4, e)) < 0)
        return rc;
    draw_kernel<<<(unsigned)rows, THREADS, 0, c->stream>>>(j);
    LAUNCHED();
    return download(c, a->ids, j.ids, rows * sizeof(*a->ids), e);
}
