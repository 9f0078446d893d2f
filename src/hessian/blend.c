/* blend.c - see blend.h. */
#include "hessian/blend.h"

#include <stdlib.h>
#include <string.h>

#include "hessian/hessian.h"

/* Where `end` begins, if name ends with it. */
static const char *ending(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);

    return n > k && !strcmp(name + n - k, end) ? name + n - k : NULL;
}

static int keep(struct blend *b, const char *name, size_t len, const float *h,
                uint64_t elements, struct err *e)
{
    if (mem_grow(&b->layer, len + 1, "blend", e) < 0 ||
        mem_grow(&b->h, elements * sizeof(*h), "blend", e) < 0)
        return e->code;
    memcpy(b->layer, name, len);
    b->layer[len] = 0;
    memcpy(b->h, h, elements * sizeof(*h));
    b->elements = elements;
    return 0;
}

static bool of_layer(const struct blend *b, const char *name)
{
    size_t n = b->layer ? strlen(b->layer) : 0;

    return n && !strncmp(name, b->layer, n) && name[n] == '.';
}

/* What an input's own n tokens count for, of all. */
static double share(const struct blend *b, uint64_t n, uint64_t cols)
{
    return (double)n / ((double)n + b->k * (double)cols);
}

static void mix(const struct blend *b, double own, float *h)
{
    for (uint64_t i = 0; i < b->elements; i++)
        h[i] = (float)(own * h[i] + (1 - own) * b->h[i]);
}

/* Towards the identity, as large as H. */
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
    const char *end = ending(name, ".mlp_in");
    uint64_t cols = hessian_cols(elements);

    if (!(b->k > 0))
        return 0;
    if (end)
        return keep(b, name, (size_t)(end - name), h, elements, e);
    if (!strstr(name, ".experts."))
        return 0;
    if (ending(name, ".mid") && n)
        mix_diagonal(share(b, n, cols), h, elements, cols);
    else if (ending(name, ".in") && of_layer(b, name) &&
             b->elements == elements)
        mix(b, share(b, n, cols), h);
    return 0;
}

double blend_cross(const struct blend *b, const char *name, uint64_t n,
                   uint64_t cols)
{
    return n && strstr(name, ".experts.") ? share(b, n, cols) : 1;
}

void blend_release(struct blend *b)
{
    free(b->layer);
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
