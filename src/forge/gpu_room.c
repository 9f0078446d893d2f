/* gpu_room.c - see request.h.  All tools of the pipe are on the GPU at the same
 * time, each with its own memory; forge-gradient runs before them, forge-tune behind. */
#include <stdio.h>
#include <string.h>

#include "common/cli/units.h"
#include "forge/request.h"

/* What each tool needs: forge-calib for a layer, forge-gradient and forge-tune (0: not
 * run). */
struct gpu_room {
    double layer, gradient, tune;
    double hessian, solve, solve_least;
};

static double tune_bytes(const struct request *r)
{
    return r->plan.device_tune_bytes +
           r->plan.device_tune_row * (double)(r->j.tune_batch * r->j.seqlen);
}

static struct gpu_room room_of(const struct request *r)
{
    const struct plan *p = &r->plan;
    const struct job *j = &r->j;

    return (struct gpu_room){
        .layer = p->device_layer_bytes,
        .gradient = request_gradients(r) ? p->device_gradient_bytes : 0,
        .tune = j->tune > 0 ? tune_bytes(r) : 0,
        .hessian = p->device_hessian_bytes[j->propagate == PROPAGATE_BOTH],
        .solve = p->device_solve_bytes[j->effort][j->fisher],
        .solve_least = p->device_solve_least[j->effort][j->fisher],
    };
}

/* Contexts, libraries and kernels of five tools. */
static const double contexts = 5.0 * (512 << 20);

double gpu_room_others(const struct request *r)
{
    const struct gpu_room n = room_of(r);

    return n.hessian + n.solve_least + contexts;
}

double gpu_room_states(const struct request *r)
{
    double all = (double)r->gpu.facts.free, left = all - gpu_room_others(r);

    return !r->j.gpu_memory && left > all / 2 && left > gpu_room_layer(r) ?
               left :
               0;
}

double gpu_room_layer(const struct request *r)
{
    return room_of(r).layer;
}

static int want(double need, double is, const char *what, struct err *e)
{
    char a[UNIT_TEXT], b[UNIT_TEXT];

    return need <= is ?
               0 :
               err_set(e, E_TEMP, "needs %s of GPU memory %s, %s are available",
                       size_text(a, need), what, size_text(b, is));
}

int gpu_room_check(const struct request *r, struct err *e)
{
    const struct gpu_room n = room_of(r);
    const struct device_facts *f = &r->gpu.facts;
    double room = (double)f->room, all = (double)f->free, each = all;

    if (!strcmp(r->j.device, "auto") || !*f->stamp ||
        r->j.method != METHOD_GPTQ)
        return 0;
    if (r->j.gpu_memory && (double)r->j.gpu_memory < each)
        each = (double)r->j.gpu_memory;
    if (want(n.layer, room, "for a layer", e) < 0 ||
        want(n.hessian, each, "for the widest Hessian", e) < 0 ||
        want(n.solve_least, each, "to solve the widest linear", e) < 0 ||
        want(n.gradient, room, "for a layer's gradients", e) < 0 ||
        want(n.tune, room, "to tune codes", e) < 0)
        return e->code;
    return want(n.layer + n.hessian + n.solve_least, all,
                "for a layer, its Hessians and its codes", e);
}

/* Steps with which effort best takes less than ten times as long as the default, for
 * models of at most so many quantized weights (DESIGN.md, "Codes are tuned"). */
static const struct {
    double weights;
    int64_t steps, batch;
} tuned[] = { { 32e6, 640, 16 }, { 256e6, 512, 8 } };

bool tune_open(const struct job *j)
{
    return j->tune == NOT_GIVEN && j->effort == EFFORT_BEST &&
           j->method == METHOD_GPTQ && j->parts == 1;
}

void tune_settle(struct request *r)
{
    struct job *j = &r->j;
    bool may = tune_open(j) && *r->gpu.facts.stamp && !r->plan.device_lacks;
    int64_t batch = j->tune_batch;

    if (!j->tune_batch)
        j->tune_batch = 16;
    if (j->tune == NOT_GIVEN)
        j->tune = 0;
    for (size_t i = 0; may && i < ARRAY_LEN(tuned); i++)
        if ((double)r->plan.quantized <= tuned[i].weights) {
            j->tune_batch = batch ? batch : tuned[i].batch;
            if (tune_bytes(r) <= (double)r->gpu.facts.room)
                j->tune = tuned[i].steps;
            return;
        }
}

void gpu_room_print(const struct request *r)
{
    const struct gpu_room n = room_of(r);
    const struct device_facts *f = &r->gpu.facts;
    const struct job *j = &r->j;
    int streams = j->propagate == PROPAGATE_BOTH ? 2 : 1;
    double tokens = (double)j->sequences * (double)j->seqlen;
    char a[UNIT_TEXT], b[UNIT_TEXT], c[UNIT_TEXT];

    if (*f->stamp)
        printf("GPU          %s: %s, %s free\n", f->stamp,
               size_text(a, (double)f->memory), size_text(b, (double)f->free));
    printf("GPU memory   %s%s for a layer",
           *f->stamp ? "" : "where there is one, ", size_text(a, n.layer));
    if (n.gradient > 0)
        printf(", %s for its gradients", size_text(a, n.gradient));
    if (n.tune > 0)
        printf(", %s to tune codes", size_text(a, n.tune));
    printf("; up to %s for the states of all tokens, which spill\n",
           size_text(a, streams * tokens * r->plan.device_token_bytes));
    printf("             %s for the widest Hessian, %s to solve the widest "
           "linear, with few rows at a time %s\n",
           size_text(a, n.hessian), size_text(b, n.solve),
           size_text(c, n.solve_least));
}
