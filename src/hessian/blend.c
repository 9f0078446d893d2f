/* blend.c - see blend.h. */
#include "hessian/blend.h"

#include <stdlib.h>
#include <string.h>

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

static void mix(const struct blend *b, double n, float *h)
{
    for (uint64_t i = 0; i < b->elements; i++)
        h[i] = (float)((n * h[i] + b->k * b->h[i]) / (n + b->k));
}

/* Towards the identity, as large as H. */
static void mix_diagonal(const struct blend *b, double n, float *h,
                         uint64_t elements)
{
    double sum = 0;
    uint64_t cols = 0;

    for (uint64_t i = 0; i < elements; i += ++cols + 1)
        sum += h[i];
    for (uint64_t i = 0; i < elements; i++)
        h[i] = (float)(n * h[i] / (n + b->k));
    for (uint64_t i = 0, c = 0; i < elements; i += ++c + 1)
        h[i] += (float)(b->k * (sum / (double)cols) / (n + b->k));
}

int blend_apply(struct blend *b, const char *name, uint64_t n, float *h,
                uint64_t elements, struct err *e)
{
    const char *end = ending(name, ".mlp_in");

    if (!(b->k > 0))
        return 0;
    if (end)
        return keep(b, name, (size_t)(end - name), h, elements, e);
    if (!strstr(name, ".experts."))
        return 0;
    if (ending(name, ".mid") && n)
        mix_diagonal(b, (double)n, h, elements);
    else if (ending(name, ".in") && of_layer(b, name) &&
             b->elements == elements)
        mix(b, (double)n, h);
    return 0;
}

double blend_cross(const struct blend *b, const char *name, uint64_t n)
{
    return n && strstr(name, ".experts.") ? (double)n / ((double)n + b->k) : 1;
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
