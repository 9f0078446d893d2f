/* blend.c - see blend.h. */
#include "hessian/blend.h"

#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "device/device.h"
#include "hessian/hessian.h"
#include "hessian/hessian_gpu.h"

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
    b->placed = false;
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

/* What an expert's Hessian is blended with. */
enum prior { PRIOR_NONE, PRIOR_LAYER, PRIOR_DIAGONAL };

static enum prior prior_of(const struct blend *b, const char *name,
                           uint64_t elements)
{
    struct tensor_name at;

    tensor_name_parse(&at, name);
    if (!(b->k > 0) || at.expert < 0)
        return PRIOR_NONE;
    if (is_part(&at, "mid"))
        return PRIOR_DIAGONAL;
    return is_part(&at, "in") && b->h && at.layer == b->layer &&
                   b->elements == elements ?
               PRIOR_LAYER :
               PRIOR_NONE;
}

/* The element that the prior adds to a diagonal of this sum. */
static float mean_share(double own, double sum, uint64_t cols)
{
    return (float)((1 - own) * sum / (double)cols);
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
        h[i] += mean_share(own, sum, cols);
}

int blend_apply(struct blend *b, const char *name, uint64_t n, float *h,
                uint64_t elements, struct err *e)
{
    uint64_t cols = hessian_cols(elements);

    if (blend_keeps(b, name))
        return blend_keep(b, name, h, elements, e);
    switch (prior_of(b, name, elements)) {
    case PRIOR_LAYER: mix(b, share(b, n, cols), h); break;
    case PRIOR_DIAGONAL:
        if (n)
            mix_diagonal(share(b, n, cols), h, elements, cols);
        break;
    case PRIOR_NONE: break;
    }
    return 0;
}

/* ---- on the device ---- */

static void leave_device(struct blend *b)
{
    if (b->there)
        device_functions()->drop(device_gpu(), b->there);
    b->there = NULL;
    b->there_elements = 0;
}

bool blend_can_there(struct blend *b, const char *name, uint64_t elements)
{
    struct err none;
    void *p;

    if (prior_of(b, name, elements) != PRIOR_LAYER ||
        b->there_elements == elements)
        return true;
    leave_device(b);
    if (device_functions()->block(device_gpu(), &p, elements * sizeof(*b->h),
                                  &none) < 0)
        return false;
    b->there = p;
    b->there_elements = elements;
    b->placed = false;
    return true;
}

static int place(struct blend *b, struct err *e)
{
    if (!b->placed &&
        hessian_gpu_put(b->there, b->h, b->elements * sizeof(*b->h), e) < 0)
        return e->code;
    b->placed = true;
    return 0;
}

int blend_apply_there(struct blend *b, const char *name, uint64_t n, float *h,
                      uint64_t elements, float *diagonal, struct err *e)
{
    enum prior prior = prior_of(b, name, elements);
    uint64_t cols = hessian_cols(elements);
    double own = share(b, n, cols), sum = 0;

    if (prior == PRIOR_NONE)
        return 0;
    for (uint64_t i = 0; i < cols; i++)
        sum += diagonal[i];
    if ((prior == PRIOR_LAYER && place(b, e) < 0) ||
        hessian_gpu_blend(h, prior == PRIOR_LAYER ? b->there : NULL, cols, own,
                          mean_share(own, sum, cols), e) < 0)
        return e->code;
    return hessian_gpu_diagonal(h, cols, diagonal, e);
}

double blend_cross(const struct blend *b, const char *name, uint64_t n,
                   uint64_t cols)
{
    return n && tensor_name_is_expert(name) ? share(b, n, cols) : 1;
}

void blend_release(struct blend *b)
{
    leave_device(b);
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
