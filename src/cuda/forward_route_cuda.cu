/* forward_route_cuda.cu - the router's choice of experts: what route_token() of
 * model/router.c does, to its bits.
 *
 * A warp has a token.  Scores are computed by element with route_exp(), the sum of
 * a softmax and that of the chosen scores are made by one lane's order, and the
 * largest of equal choices is the first, whichever lane has it.  Scores and choices
 * of a batch are in memory of the device, that is in its L2: 4 MB for 2,048 tokens
 * of 256 experts. */
#include "cuda/forward_internal.cuh"
#include "model/route_exp.h"

#include <stdlib.h>
#include <string.h>

struct route_job {
    enum router_kind kind;
    int64_t rows;
    int experts, top_k, groups, drop; /* drop: how many groups are left out */
    bool renormalize, weigh_inputs;
    double scale;
    const float *shift, *bias;
    float *score, *choice; /* [rows, experts]; score: the logits */
    int32_t *chosen;       /* [rows, top_k] */
    float *weights, *scores;
};

/* s[n] += shift[n]; whether all are finite. */
static __device__ bool shifted(float *s, const float *shift, int n, int lane)
{
    bool finite = true;

    for (int i = lane; i < n; i += WARP) {
        if (shift)
            s[i] = __fadd_rn(s[i], shift[i]);
        finite &= isfinite(s[i]) != 0;
    }
    return __all_sync(~0u, finite);
}

static __device__ void sigmoid(float *s, int n, int lane)
{
    for (int i = lane; i < n; i += WARP)
        s[i] = __fdiv_rn(1.0f, __fadd_rn(1.0f, route_exp(-s[i])));
}

static __device__ void softmax(float *s, int n, int lane)
{
    float most = -INFINITY;
    double sum = 0;

    for (int i = lane; i < n; i += WARP)
        most = fmaxf(most, s[i]);
    for (int i = WARP / 2; i; i >>= 1)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
    for (int i = lane; i < n; i += WARP)
        s[i] = route_exp(__fadd_rn(s[i], -most));
    __syncwarp();
    for (int i = 0; i < n; i++) /* all lanes the same, in the CPU's order */
        sum = __dadd_rn(sum, (double)s[i]);
    __syncwarp();
    for (int i = lane; i < n; i += WARP)
        s[i] = (float)__ddiv_rn((double)s[i], sum);
}

/* Index of the largest of c[n], the first of equal ones; all lanes get it. */
static __device__ int largest(const float *c, int n, int lane)
{
    float most = lane < n ? c[lane] : -INFINITY;
    int at = lane;

    for (int i = lane + WARP; i < n; i += WARP)
        if (c[i] > most) {
            most = c[i];
            at = i;
        }
    for (int i = WARP / 2; i; i >>= 1) {
        float other = __shfl_xor_sync(~0u, most, i);
        int there = __shfl_xor_sync(~0u, at, i);

        if (other > most || (other == most && there < at)) {
            most = other;
            at = there;
        }
    }
    return at;
}

/* A group's rank: its largest score, or the sum of its two largest. */
static __device__ float group_rank(const float *c, int n, bool two)
{
    float first = -INFINITY, second = -INFINITY;

    for (int i = 0; i < n; i++)
        if (c[i] > first) {
            second = first;
            first = c[i];
        } else if (c[i] > second) {
            second = c[i];
        }
    return two && n > 1 ? __fadd_rn(first, second) : first;
}

/* Set the lowest-ranked group that there is, the last of equal ones, to -infinity.
 * A lane ranks every WARPth group. */
static __device__ void drop_group(const struct route_job &j, float *c, int lane)
{
    int size = j.experts / j.groups, at = -1;
    float least = INFINITY;

    for (int g = lane; g < j.groups; g += WARP) {
        float w;

        if (c[g * size] == -INFINITY)
            continue;
        w = group_rank(c + g * size, size, j.kind == ROUTER_SIGMOID);
        if (w <= least) {
            least = w;
            at = g;
        }
    }
    for (int i = WARP / 2; i; i >>= 1) {
        float other = __shfl_xor_sync(~0u, least, i);
        int there = __shfl_xor_sync(~0u, at, i);

        if (there >= 0 &&
            (at < 0 || other < least || (other == least && there > at))) {
            least = other;
            at = there;
        }
    }
    __syncwarp();
    for (int i = lane; at >= 0 && i < size; i += WARP)
        c[at * size + i] = -INFINITY;
    __syncwarp();
}

static __device__ void choose(const struct route_job &j, int64_t token,
                              const float *score, float *choice, int lane)
{
    int64_t at = token * j.top_k;
    double sum = 0, by = j.scale;

    for (int k = 0; k < j.top_k; k++) {
        int i = largest(choice, j.experts, lane);

        __syncwarp();
        if (!lane) {
            choice[i] = -INFINITY;
            j.chosen[at + k] = i;
            j.scores[at + k] = score[i];
        }
        __syncwarp();
        sum = __dadd_rn(sum, (double)score[i]);
    }
    if (j.renormalize)
        by = __ddiv_rn(by, __dadd_rn(sum, 1e-20));
    for (int k = lane; k < j.top_k; k += WARP)
        j.weights[at + k] = j.weigh_inputs ?
                                1.0f :
                                (float)__dmul_rn((double)j.scores[at + k], by);
}

static __global__ void __launch_bounds__(ROW) route_kernel(struct route_job j)
{
    int64_t token = (int64_t)blockIdx.x * (ROW / WARP) + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP, n = j.experts;
    float *s = j.score + token * n, *c = j.choice + token * n;

    if (token >= j.rows)
        return;
    if (!shifted(s, j.shift, n, lane)) {
        if (!lane)
            j.chosen[token * j.top_k] = -1;
        return;
    }
    __syncwarp();
    if (j.kind == ROUTER_SIGMOID)
        sigmoid(s, n, lane);
    else
        softmax(s, n, lane);
    for (int i = lane; i < n; i += WARP)
        c[i] = __fadd_rn(s[i], j.bias ? j.bias[i] : 0.0f);
    __syncwarp();
    for (int i = 0; i < j.drop; i++)
        drop_group(j, c, lane);
    choose(j, token, s, c, lane);
}

/* mass[n] += the scores of all tokens, in their order. */
static __global__ void __launch_bounds__(WARP)
    mass_kernel(const float *score, int64_t rows, int n, double *mass)
{
    int i = blockIdx.x * WARP + threadIdx.x;
    double sum;

    if (i >= n)
        return;
    sum = mass[i];
#pragma unroll 16
    for (int64_t t = 0; t < rows; t++)
        sum = __dadd_rn(sum, (double)score[t * n + i]);
    mass[i] = sum;
}

/* What comes back to the host lies together: masses, chosen experts, weights,
 * scores. */
struct route_room {
    size_t mass, choices; /* bytes of the masses, of each of the others */
    size_t all;
};

static struct route_room room_of(const struct forward_route *a)
{
    struct route_room r;

    r.mass = (size_t)a->moe.n_experts * sizeof(double);
    r.choices = (size_t)(a->rows * a->moe.top_k) * sizeof(float);
    r.all = r.mass + 3 * r.choices;
    return r;
}

static int run(struct cuda_context *c, const struct forward_route *a,
               float *logits, char *room, struct err *e)
{
    const struct route_room r = room_of(a);
    const struct moe &m = a->moe;
    int n = (int)m.n_experts;
    struct route_job j;
    int rc;

    j.kind = a->kind;
    j.rows = a->rows;
    j.experts = n;
    j.top_k = (int)m.top_k;
    j.groups = (int)m.n_group;
    j.drop = m.grouped ? (int)(m.n_group - m.topk_group) : 0;
    j.renormalize = m.renormalize;
    j.weigh_inputs = m.weigh_inputs;
    j.scale = m.scale;
    j.shift = a->shift;
    j.bias = a->bias;
    j.score = logits;
    j.chosen = (int32_t *)(room + r.mass);
    j.weights = (float *)(room + r.mass + r.choices);
    j.scores = (float *)(room + r.mass + 2 * r.choices);
    j.choice = (float *)(room + r.all);
    route_kernel<<<(unsigned)((a->rows + ROW / WARP - 1) / (ROW / WARP)), ROW,
                   0, c->stream>>>(j);
    LAUNCHED();
    if (!a->mass)
        return 0;
    if ((rc = upload(c, room, a->mass, r.mass, e)) < 0)
        return rc;
    mass_kernel<<<(unsigned)((n + WARP - 1) / WARP), WARP, 0, c->stream>>>(
        logits, a->rows, n, (double *)room);
    LAUNCHED();
    return 0;
}

int forward_route(struct cuda_context *c, const struct forward_route *a,
                  struct err *e)
{
    const struct route_room r = room_of(a);
    int64_t n = a->moe.n_experts;
    struct forward_sums sums = { a->dtype, DT_F32, a->rows, n,    a->depth, 0,
                                 n,        a->x,   a->w,    NULL, n };
    struct forward_state *s;
    float *logits;
    char *host;
    int rc;

    if (!a->rows)
        return 0;
    if ((rc = forward_state(c, &s, e)) < 0 ||
        (rc = buffer_need(c, &s->routed,
                          r.all + (size_t)(a->rows * n) * sizeof(float), e)) <
            0 ||
        (rc = forward_sums_there(c, &sums, &logits, e)) < 0 ||
        (rc = run(c, a, logits, (char *)s->routed.data, e)) < 0)
        return rc;
    host = (char *)mem_alloc(r.all, "router", e);
    if (!host)
        return e->code;
    rc = download(c, host, s->routed.data, r.all, e);
    if (rc >= 0) {
        if (a->mass)
            memcpy(a->mass, host, r.mass);
        memcpy(a->experts, host + r.mass, r.choices);
        memcpy(a->weights, host + r.mass + r.choices, r.choices);
        memcpy(a->scores, host + r.mass + 2 * r.choices, r.choices);
    }
    free(host);
    return rc;
}
