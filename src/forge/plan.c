/* plan.c - see plan.h. */
#include "forge/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/device_bytes.h"
#include "arch/lacks.h"
#include "arch/tensor_name.h"
#include "calib/store.h"
#include "checkpoint/checkpoint.h"
#include "common/math/quant.h"
#include "device/ledger.h"
#include "gptq/solve/fishers.h"
#include "gptq/solve/solve_need.h"
#include "hessian/hessian_room.h"

static uint64_t elements(const struct ck_tensor *t)
{
    uint64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->dims[i]; /* no overflow: checked when the file was opened */
    return n;
}

/* Bytes of a linear: codes, and a scale of 2 bytes per group.  Zeros, shapes and
 * GPTQ's g_idx are left out. */
static uint64_t packed_bytes(const struct linear *l, struct module_grid g)
{
    uint64_t groups = ((uint64_t)l->cols + g.group - 1) / g.group;
    uint64_t codes = (uint64_t)l->cols * (unsigned)g.bits / 8;

    return (uint64_t)l->rows * (codes + groups * 2);
}

/* Sweeps of Fisher descent for a linear; 0: none. */
static int sweeps(const struct linear *l, int effort)
{
    bool down = l->input == IN_EXPERT_MID || l->input == IN_MLP_MID;

    return effort > EFFORT_FAST && (down || l->input == IN_ATTN_OUT) ?
               fishers_sweeps(-1, (enum effort)effort, l->module) :
               0;
}

/* Parameters of the plan that all layers share. */
struct want {
    const struct model_config *m;
    const struct checkpoint *c;
    const struct grid_rules *grids;
    const struct module_choice *choice;
};

/* module NULL: the default grid. */
static struct solve_cost cost_of(const struct want *w, const char *module,
                                 int effort, bool corrected)
{
    struct solve_cost c = { (enum effort)effort, w->grids->group,
                            w->grids->symmetric, corrected };

    if (module) {
        struct module_grid g = grid_rules_find(w->grids, module);

        c.group = g.group;
        c.symmetric = g.symmetric;
    }
    return c;
}

static void raise(double *most, double x)
{
    *most = x > *most ? x : *most;
}

/* Blocks of one kind that a layer may lend: bytes of all, and of the largest. */
struct lent_rooms {
    double all, most;
};

static void lend(struct lent_rooms *l, double times, double bytes)
{
    l->all += times * bytes;
    raise(&l->most, bytes);
}

/* Bytes of n rooms at most. */
static double rooms(const struct lent_rooms *l, int n)
{
    return l->all < n * l->most ? l->all : n * l->most;
}

/* Whether the linear writes into the residual stream. */
static bool adds(int input)
{
    return input == IN_ATTN_OUT || input == IN_MLP_MID ||
           input == IN_EXPERT_MID;
}

/* Rows of an input's cross moment: [cols, cols] (drift), or [hidden size, cols]
 * (output). */
static uint64_t cross_rows(const struct model_config *m, int input,
                           uint64_t width)
{
    return adds(input) ? (uint64_t)m->hidden_size : width;
}

static void add_device_solving(struct plan *p, const struct want *w,
                               const struct linear *l)
{
    const struct module_grid g = grid_rules_find(w->grids, l->module);
    struct solve_need n = { .group = g.group,
                            .symmetric = g.symmetric,
                            .rows = (uint64_t)l->rows,
                            .cols = (uint64_t)l->cols,
                            .drift = !adds(l->input) };

    if (g.bits == 8)
        return; /* which the CPU solves */
    for (int i = 0; i < EFFORTS; i++) {
        n.effort = (enum effort)i;
        n.moved = i > EFFORT_FAST;
        for (int k = 0; k < 2; k++) {
            n.fisher = k && adds(l->input);
            raise(&p->device_solve_bytes[i][k],
                  (double)solve_need_bytes(&n, false));
            raise(&p->device_solve_least[i][k],
                  (double)solve_need_bytes(&n, true));
        }
    }
}

/* A Hessian, and a cross moment, while they are summed, and again where they are
 * lent. */
static void add_device_hessian(struct plan *p, uint64_t width, uint64_t outputs)
{
    const struct hessian_shape h = { width, 0, DT_BF16 };
    const struct cross_shape c = { outputs, width, DT_BF16 };
    const struct hessian_gpu_room a = hessian_gpu_room(&h);
    const struct cross_room b = cross_room(&c);
    double plain = (double)(a.tokens + a.sum + a.result);

    raise(&p->device_hessian_bytes[0], plain);
    raise(&p->device_hessian_bytes[1], plain + (double)(b.x + b.y + 2 * b.sum));
}

static void add_solving(struct plan *p, const struct want *w,
                        const struct linear *l)
{
    double rows = (double)l->rows, cols = (double)l->cols;

    for (int i = 0; i < EFFORTS; i++) {
        const struct solve_cost plain = cost_of(w, l->module, i, false);
        const struct solve_cost moved = cost_of(w, l->module, i, true);
        double flops = solve_cost_linear(&plain, rows, cols);

        p->solve_flops[i] += flops;
        p->target_flops[i] += solve_cost_linear(&moved, rows, cols) - flops;
        p->fisher_flops[i] += solve_cost_fisher(rows, cols, sweeps(l, i));
    }
    add_device_solving(p, w, l);
}

static int add_linear(struct plan *p, const struct want *w,
                      const struct linear *l, struct err *e)
{
    const struct model_config *m = w->m;
    const struct checkpoint *c = w->c;
    char name[MODULE_PATH_MAX + 8];
    const struct ck_tensor *t;
    uint64_t packed;
    double cols = (double)l->cols, rows = (double)l->rows;
    /* the mean fraction of tokens that is routed to an expert */
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
    p->token_flops += 2 * rows * cols * share;
    /* experts run twice: on the reference's routing, and on the quantized
     * model's */
    p->second_flops += 2 * rows * cols * share * (l->expert < 0 ? 1 : 2);
    if (!module_chosen(w->choice, l->module))
        return 0;
    p->modules++;
    p->layer_modules[l->layer]++;
    p->quantized += (uint64_t)l->rows * (uint64_t)l->cols;
    packed = packed_bytes(l, grid_rules_find(w->grids, l->module));
    p->bytes_packed += packed;
    p->bytes_out += packed;
    p->bytes_out -= t ? t->bytes : 0;
    add_solving(p, w, l);
    return 0;
}

/* Add the Hessian of an input class; of experts one is in memory at a time. */
static void add_input(struct plan *p, const struct want *want, int class,
                      int64_t width)
{
    const struct model_config *m = want->m;
    bool expert = class == IN_EXPERT || class == IN_EXPERT_MID;
    uint64_t w = (uint64_t)width, bytes = w * (w + 1) / 2 * 4;
    double cols = (double)width;
    double times = expert ? (double)m->moe.top_k : 1;
    uint64_t outputs = cross_rows(m, class, w);

    add_device_hessian(p, w, outputs);
    p->layer_hessian_bytes += bytes;
    if (bytes > p->hessian_bytes)
        p->hessian_bytes = bytes;
    p->token_flops += cols * cols * times;
    p->second_flops += 2 * cols * (double)outputs * times;
    for (int i = 0; i < EFFORTS; i++) {
        const struct solve_cost cost = cost_of(want, NULL, i, false);

        p->solve_flops[i] += solve_cost_input(&cost, cols) *
                             (expert ? (double)m->moe.n_experts : 1);
    }
}

static double codes_room(const struct want *w, const struct linear *l)
{
    int bits = grid_rules_find(w->grids, l->module).bits;

    return (double)ledger_codes_room((size_t)l->rows *
                                     quant_row_bytes((uint64_t)l->cols, bits));
}

/* What a layer of these codes and inputs lends. */
static void add_lent(struct plan *p, const struct model_config *m,
                     const struct lent_rooms *codes,
                     const int64_t width[IN_COUNT])
{
    struct lent_rooms moments[2] = { 0 };

    for (int i = 0; i < IN_COUNT; i++) {
        bool expert = i == IN_EXPERT || i == IN_EXPERT_MID;
        double times = expert ? (double)m->moe.n_experts : 1;
        uint64_t w = (uint64_t)width[i];

        for (int both = 0; both < 2; both++)
            lend(&moments[both], times, 4 * (double)(w * (w + 1) / 2));
        lend(&moments[1], times, 4 * (double)(cross_rows(m, i, w) * w));
    }
    for (int both = 0; both < 2; both++)
        raise(&p->lent_bytes[both], rooms(codes, LEDGER_LEASES) +
                                        rooms(&moments[both], LEDGER_MOMENTS));
}

static int add_layer(struct plan *p, const struct want *w, int64_t layer,
                     struct err *e)
{
    const struct model_config *m = w->m;
    int64_t width[IN_COUNT] = { 0 }, n = model_linear_count(m, layer);
    uint64_t h = (uint64_t)m->hidden_size, state = 2 * (uint64_t)model_row(m);
    struct lent_rooms codes = { 0 };

    p->layer_hessian_bytes = 0;
    p->weighers += model_linear_common(m, layer);
    for (int64_t i = 0; i < n; i++) {
        uint64_t before = p->quantized;
        struct linear l;
        int r;

        model_linear(m, layer, i, &l);
        if ((r = add_linear(p, w, &l, e)))
            return r;
        width[l.input] = l.cols;
        if (p->quantized > before)
            lend(&codes, 1, codes_room(w, &l));
    }
    add_lent(p, m, &codes, width);
    for (int i = 0; i < IN_COUNT; i++) {
        if (!width[i])
            continue;
        add_input(p, w, i, width[i]);
        if (i == IN_EXPERT)
            state += 2 * h; /* sum of the experts' outputs, f32: twice a bf16 */
        else if (i != IN_ATTN && i != IN_EXPERT_MID)
            state += h + (uint64_t)width[i];
    }
    if (2 * state > p->state_bytes)
        p->state_bytes = 2 * state; /* bf16 */
    return 0;
}

/* Bytes of a tensor that are in memory while its layer runs; of routed experts
 * only those that are read together with the one that runs (model/experts.c). */
static uint64_t resident(const struct model_config *m,
                         const struct ck_tensor *t,
                         const struct tensor_name *name)
{
    return name->expert >= 0 && m->moe.n_experts > 4 ?
               4 * t->bytes / (uint64_t)m->moe.n_experts :
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
        struct tensor_name name;

        tensor_name_parse(&name, t->name);
        p->parameters += elements(t);
        p->bytes_in += t->stored;
        p->bytes_out += t->bytes;
        if (name.layer >= 0 && name.layer < m->n_layers)
            layer[name.layer] += resident(m, t, &name);
    }
    for (int64_t i = 0; i < m->n_layers; i++)
        if (layer[i] > p->layer_bytes)
            p->layer_bytes = layer[i];
    free(layer);
    return 0;
}

/* What forge-calib keeps of a token, in bf16. */
static void add_states(struct plan *p, const struct model_config *m)
{
    const double item = sizeof(uint16_t), h = (double)m->hidden_size;

    for (int both = 0; both < 2; both++) {
        const struct store_width w = store_width(m, both);

        p->x_bytes = (double)w.x * item;
        p->act_bytes[both] = (double)w.act * item;
        p->companion_bytes[both] = (double)w.companion * item;
        p->expert_lent_bytes[both] =
            experts_lent_bytes(m, sizeof(uint16_t), both);
    }
    for (int64_t i = 0; i < m->n_layers; i++)
        if (model_layer_experts(m, i)) {
            p->top_k = m->moe.top_k;
            p->routes = m->moe.n_router;
            p->expert_in_bytes = h * item;
            if (i < m->n_layers - 1)
                p->expert_sum_bytes = h * sizeof(float);
            p->expert_codes_bytes = (double)model_layer_experts(m, i) * 3 * h *
                                    (double)m->moe.width *
                                    (0.5 + sizeof(uint32_t) / 128.0);
            p->expert_mid_bytes = experts_mid_bytes(m, sizeof(uint16_t));
        }
    p->expert_pass_bytes = experts_pass_bytes(m, sizeof(uint16_t));
    p->device_lacks = model_device_lacks(m, 1) != NULL;
}

int plan_model(struct plan *p, const char *dir, const struct grid_rules *grids,
               const struct module_choice *choice, struct err *e)
{
    struct model_config m;
    struct checkpoint *c;
    int r = model_config_read(&m, dir, e);

    memset(p, 0, sizeof(*p));
    if (r)
        return r;
    r = checkpoint_open(&c, dir, e);
    if (!r) {
        const struct want w = { &m, c, grids, choice };

        module_choice_apply(choice, &m);
        p->kv_b = m.kv_b;
        p->layers = m.n_layers;
        p->hidden_size = m.hidden_size;
        p->row = model_row(&m);
        p->head_flops = 2 * (double)m.hidden_size * (double)m.vocab_size;
        p->device_layer_bytes = layers_device_bytes(&m, sizeof(uint16_t));
        p->device_gradient_bytes = gradient_device_bytes(&m, sizeof(uint16_t));
        p->device_tune_bytes = tune_device_bytes(&m, sizeof(uint16_t), 0);
        p->device_tune_row =
            tune_device_bytes(&m, sizeof(uint16_t), 1) - p->device_tune_bytes;
        p->gradient_bytes = gradient_host_bytes(&m, sizeof(uint16_t));
        p->gradient_thread_bytes = gradient_thread_bytes(&m);
        p->norms_behind = model_norms(&m)->attn_out;
        p->adds_scaled = model_adds_scaled(&m);
        p->device_token_bytes = token_device_bytes(&m, sizeof(uint16_t));
        add_states(p, &m);
        p->bf16_experts = m.moe.n_experts > 0 && m.dtype == DT_BF16;
        p->packed = checkpoint_storage(c) != STORAGE_PLAIN;
        p->layer_modules =
            mem_zero((size_t)m.n_layers, sizeof(*p->layer_modules), "plan", e);
        r = p->layer_modules ? add_tensors(p, &m, c, e) : e->code;
        for (int64_t i = 0; i < m.n_layers && !r; i++)
            r = add_layer(p, &w, i, e);
        checkpoint_close(c);
    }
    model_config_release(&m);
    if (r)
        plan_release(p);
    return r;
}

void plan_release(struct plan *p)
{
    free(p->layer_modules);
    p->layer_modules = NULL;
}
