/* blend.c - see blend.h. */
#include "hessian/blend.h"

#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "hessian/hessian.h"

static bool is_part(const struct tensor_name *n, const char *part)
{
    return n->part.len == strlen(part) &&
           !strncmp(n->part.at, part, n->part.len);
}

bool blend_leaves(const struct blend *b, const char *name)
{
    return !(b->k > 0) || !tensor_name_is_expert(name);
}

bool blend_keeps(const struct blend *b, const char *name)
{
    struct tensor_name at;

    tensor_name_parse(&at, name);
    return b->k > 0 && at.expert < 0 && is_part(&at, "mlp_in");
}

int blend_keep(struct blend *b, const char *name, const float *h,
               uint64_t elements, struct err *e)
{
    struct tensor_name at;

    tensor_name_parse(&at, name);
    if (mem_grow(&b->h, elements * sizeof(*h), "blend", e) < 0)
        return e->code;
    memcpy(b->h, h, elements * sizeof(*h));
    b->elements = elements;
    b->layer = at.layer;
    return 0;
}

/* n / (n + K): the weight of an input's own n tokens. */
static double share(const struct blend *b, uint64_t n, uint64_t cols)
{
    return (double)n / ((double)n + b->k * (double)cols);
}

static void mix(const struct blend *b, double own, float *h)
{
    for (uint64_t i = 0; i < b->elements; i++)
        h[i] = (float)(own * h[i] + (1 - own) * b->h[i]);
}

/* h = own h + (1 - own) mean(diag h) I. */
static void mix_diagonal(double own, float *h, uint64_t elements, uint64_t cols)
{
    double sum = 0;

    for (uint64_t i = 0, c = 0; i < elements; i += ++c + 1)
        sum += h[i];
    for (uint64_t i = 0; i < elements; i++)
        h[i] = (float)(own * h[i]);
    for (uint64_t i = 0, c = 0; i < elements; i += ++c + 1)
        h[i] += (float)((1 - own) * sum / (double)cols);
}

int blend_apply(struct blend *b, const char *name, uint64_t n, float *h,
                uint64_t elements, struct err *e)
{
    uint64_t cols = hessian_cols(elements);
    struct tensor_name at;

    if (!(b->k > 0))
        return 0;
    tensor_name_parse(&at, name);
    if (at.expert < 0)
        return blend_keeps(b, name) ? blend_keep(b, name, h, elements, e) : 0;
    if (is_part(&at, "mid") && n)
        mix_diagonal(share(b, n, cols), h, elements, cols);
    else if (is_part(&at, "in") && b->h && at.layer == b->layer &&
             b->elements == elements)
        mix(b, share(b, n, cols), h);
    return 0;
}

double blend_cross(const struct blend *b, const char *name, uint64_t n,
                   uint64_t cols)
{
    return n && tensor_name_is_expert(name) ? share(b, n, cols) : 1;
}

void blend_release(struct blend *b)
{
    free(b->h);
    *b = (struct blend){ 0 };
}

void blend_identity(float *h, uint64_t elements, uint64_t g)
{
    memset(h, 0, elements * sizeof(*h));
    for (uint64_t i = 0, c = 0; i < elements; c++) {
        h[i] = 1;
        i += !g ? c + 2 : (c + 1) % g ? g + 1 : 1;
    }
}
