/* forward_experts_cuda.cu - a pass over the experts of a layer whose weights are all
 * there, a few launches for all of them (grouped.cuh).  What is rounded is what is by
 * forward_product(), one expert after the other. */
#include "cuda/grouped.cuh"

#include <stdlib.h>

#define PART_BYTES ((int64_t)256 << 20) /* of the rows that run together */

/* Rows of experts from..to-1: inputs and outputs [rows, h], gate and up [rows, width]. */
struct rows {
    int64_t from, to, first, n;
    bf16 *in, *gate, *up, *out;
};

static int64_t row_bytes(const struct forward_experts *a)
{
    return 2 * (a->h + a->width) * (int64_t)sizeof(bf16);
}

/* The products of one linear of the part's experts, to `list`. */
static struct grouped *list_products(const struct forward_experts *a,
                                     const struct rows *r, int linear,
                                     const bf16 *x, bf16 *y, int64_t out,
                                     int64_t in, struct grouped *list)
{
    for (int64_t i = r->from; i < r->to; i++) {
        int64_t at = a->first[i] - r->first;

        *list++ = { x + at * in,  (const bf16 *)a->w[linear][i],
                    y + at * out, a->first[i + 1] - a->first[i],
                    out,          in };
    }
    return list;
}

static int run_rows(struct cuda_context *c, const struct forward_experts *a,
                    const struct rows *r, struct grouped *list, struct err *e)
{
    const struct forward_rows of = {
        DT_BF16, r->n, a->h, a->top_k, a->slot + r->first, a->by
    };
    const struct forward_pair pair = { DT_BF16,  r->n,      a->width,
                                       r->gate,  r->up,     a->width,
                                       a->width, a->gating, r->gate };
    const struct grouped_rows sums = { a->tokens, a->top_k, a->h,
                                       a->row,    r->first, r->first + r->n,
                                       a->weight };
    struct grouped *end =
        list_products(a, r, 0, r->in, r->gate, a->width, a->h, list);
    int rc;

    end = list_products(a, r, 1, r->in, r->up, a->width, a->h, end);
    if ((rc = forward_gather(c, &of, r->in, a->in, e)) < 0 ||
        (rc = grouped_multiply(c, GROUPED_FORWARD, GROUPED_BF16, list,
                               end - list, e)) < 0 ||
        (rc = forward_pair(c, &pair, e)) < 0)
        return rc;
    end = list_products(a, r, 2, r->gate, r->out, a->h, a->width, list);
    rc =
        grouped_multiply(c, GROUPED_FORWARD, GROUPED_BF16, list, end - list, e);
    return rc < 0 ? rc : grouped_add(c, sums, DT_BF16, r->out, a->sum, e);
}

/* Experts from..to-1. */
static int run_part(struct cuda_context *c, const struct forward_experts *a,
                    int64_t from, int64_t to, struct grouped *list,
                    struct err *e)
{
    int64_t n = a->first[to] - a->first[from];
    struct forward_state *s;
    struct rows r = { from, to, a->first[from], n };
    int rc = forward_state(c, &s, e);

    if (rc < 0 || !n ||
        (rc = buffer_need(c, &s->experts, (size_t)(n * row_bytes(a)), e)) < 0)
        return rc;
    r.in = (bf16 *)s->experts.data;
    r.gate = r.in + n * a->h;
    r.up = r.gate + n * a->width;
    r.out = r.up + n * a->width;
    return run_rows(c, a, &r, list, e);
}

int forward_experts(struct cuda_context *c, const struct forward_experts *a,
                    struct err *e)
{
    int64_t most = PART_BYTES / row_bytes(a);
    struct grouped *list = (struct grouped *)mem_alloc(
        (size_t)(2 * a->experts + 1) * sizeof(*list), "experts", e);
    int rc = list ? 0 : e->code;

    for (int64_t at = 0, end; at < a->experts && rc >= 0; at = end) {
        end = grouped_end(a->first, a->experts, at, most);
        rc = run_part(c, a, at, end, list, e);
    }
    free(list);
    return rc;
}
