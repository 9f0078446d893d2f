/* plan.c - see plan.h. */
#include "driver/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"

static uint64_t elements(const struct ck_tensor *t)
{
    uint64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->dims[i]; /* checked against the file when it was opened */
    return n;
}

/* 4-bit codes, per group a scale and at most a zero, and what some layouts
 * add: a shape, or an index per input. */
static uint64_t packed_bytes(const struct linear *l, int64_t group)
{
    uint64_t groups =
        ((uint64_t)l->cols + (uint64_t)group - 1) / (uint64_t)group;

    return (uint64_t)l->rows * ((uint64_t)l->cols / 2 + groups * 2);
}

/* How often forge-solve goes over rows together. */
static double sweeps(const struct linear *l)
{
    if (l->input == IN_EXPERT_MID)
        return 2;
    return l->input == IN_ATTN_OUT || l->input == IN_MLP_MID ? 6 : 0;
}

static int add_linear(struct plan *p, const struct model_config *m,
                      const struct checkpoint *c, const struct linear *l,
                      int64_t group, struct err *e)
{
    char name[MODULE_PATH_MAX + 8];
    const struct ck_tensor *t;
    double cols = (double)l->cols, rows = (double)l->rows;
    /* of all tokens, those that come to an expert, on the average */
    double share =
        l->expert < 0 ? 1 : (double)m->moe.top_k / (double)m->moe.n_experts;

    snprintf(name, sizeof(name), "%.*s.weight", MODULE_PATH_MAX - 1, l->module);
    t = checkpoint_find(c, name);
    if (!t && checkpoint_storage(c) == STORAGE_PLAIN)
        return err_set(e, E_DATA, "tensor '%s' is missing", name);
    if (t && (t->ndim != 2 || t->dims[0] != (uint64_t)l->rows ||
              t->dims[1] != (uint64_t)l->cols))
        return err_set(e, E_DATA, "tensor '%s' is not %lld x %lld", name,
                       (long long)l->rows, (long long)l->cols);
    p->modules++;
    p->quantized += (uint64_t)l->rows * (uint64_t)l->cols;
    p->bytes_out += packed_bytes(l, group);
    p->bytes_out -= t ? t->bytes : 0;
    p->token_flops += 2 * rows * cols * share;
    p->solve_flops += rows * cols * cols;
    /* experts: those of the original's choice, and those of ours */
    p->second_flops += 2 * rows * cols * share * (l->expert < 0 ? 1 : 2);
    p->group_flops += rows * cols * (double)group;
    p->square_flops += rows * cols * cols;
    p->couple_flops += sweeps(l) * 2 * rows * cols * (rows + cols);
    return 0;
}

/* The Hessian of an input class; one expert's is in memory at a time. */
static void add_input(struct plan *p, const struct model_config *m, int class,
                      int64_t width)
{
    bool expert = class == IN_EXPERT || class == IN_EXPERT_MID;
    uint64_t w = (uint64_t)width, bytes = w * (w + 1) / 2 * 4;
    bool output =
        class == IN_ATTN_OUT || class == IN_MLP_MID || class == IN_EXPERT_MID;
    double cols = (double)width;
    double times = expert ? (double)m->moe.top_k : 1;

    p->layer_hessian_bytes += bytes;
    if (bytes > p->hessian_bytes)
        p->hessian_bytes = bytes;
    p->token_flops += cols * cols * times;
    /* the cross moment: of two inputs, or of an output and an input */
    p->second_flops +=
        2 * cols * (output ? (double)m->hidden_size : cols) * times;
    p->solve_flops +=
        cols * cols * cols / 3 * (expert ? (double)m->moe.n_experts : 1);
}

static int add_layer(struct plan *p, const struct model_config *m,
                     const struct checkpoint *c, int64_t layer, int64_t group,
                     struct err *e)
{
    int64_t width[IN_COUNT] = { 0 }, n = model_linear_count(m, layer);
    uint64_t h = (uint64_t)m->hidden_size, state = 2 * h;

    p->layer_hessian_bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        struct linear l;
        int r;

        model_linear(m, layer, i, &l);
        if ((r = add_linear(p, m, c, &l, group, e)))
            return r;
        width[l.input] = l.cols;
    }
    for (int i = 0; i < IN_COUNT; i++) {
        if (!width[i])
            continue;
        add_input(p, m, i, width[i]);
        if (i == IN_EXPERT)
            state += 2 * h; /* the sum of the experts' outputs, in f32 */
        else if (i != IN_ATTN && i != IN_EXPERT_MID)
            state += h + (uint64_t)width[i];
    }
    if (2 * state > p->state_bytes)
        p->state_bytes = 2 * state; /* bf16 */
    return 0;
}

/* The number in "model.layers.N.", or -1. */
static int64_t layer_of(const char *name)
{
    long long n;

    return sscanf(name, "model.layers.%lld.", &n) == 1 ? n : -1;
}

/* What of a tensor is in memory when its layer is worked on: of the routed
 * experts, two. */
static uint64_t resident(const struct model_config *m,
                         const struct ck_tensor *t)
{
    const char *p = strstr(t->name, ".experts.");

    return p && p[9] >= '0' && p[9] <= '9' && m->moe.n_experts > 2 ?
               2 * t->bytes / (uint64_t)m->moe.n_experts :
               t->bytes;
}

static int add_tensors(struct plan *p, const struct model_config *m,
                       const struct checkpoint *c, struct err *e)
{
    uint64_t *layer = mem_zero((size_t)m->n_layers, sizeof(*layer), "plan", e);

    if (!layer)
        return e->code;
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, i);
        int64_t n = layer_of(t->name);

        p->parameters += elements(t);
        p->bytes_in += t->stored;
        p->bytes_out += t->bytes;
        if (n >= 0 && n < m->n_layers)
            layer[n] += resident(m, t);
    }
    for (int64_t i = 0; i < m->n_layers; i++)
        if (layer[i] > p->layer_bytes)
            p->layer_bytes = layer[i];
    free(layer);
    return 0;
}

int plan_model(struct plan *p, const char *dir, int64_t group, struct err *e)
{
    struct model_config m;
    struct checkpoint *c;
    int r = model_config_read(&m, dir, e);

    if (r)
        return r;
    memset(p, 0, sizeof(*p));
    r = checkpoint_open(&c, dir, e);
    if (!r) {
        p->layers = m.n_layers;
        p->hidden_size = m.hidden_size;
        p->bf16_experts = m.moe.n_experts > 0 && m.dtype == DT_BF16;
        r = add_tensors(p, &m, c, e);
        for (int64_t i = 0; i < m.n_layers && !r; i++)
            r = add_layer(p, &m, c, i, group, e);
        checkpoint_close(c);
    }
    model_config_release(&m);
    return r;
}
