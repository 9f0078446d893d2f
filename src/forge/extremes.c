/* extremes.c - see extremes.h. */
#include "forge/extremes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arch/config.h"
#include "checkpoint/checkpoint.h"
#include "common/math/threads.h"
#include "gptq/grid/grid.h"

enum { PIECE = 4 << 20 /* bytes */ };

/* Rows of a linear's weight, or all of a weight that is not read by rows. */
struct piece {
    size_t tensor; /* its index in the checkpoint */
    bool linear;   /* or another weight, which is only to be finite */
    uint64_t first, n;
    float most; /* its largest |w| */
};

struct search {
    const struct job *j;
    struct piece *piece;
    size_t n, cap;
    struct threads_error error;
};

static int look_at(struct search *s, size_t begin, size_t end, struct err *e)
{
    struct checkpoint *c;
    void *buf = NULL;
    size_t cap = 0;
    int rc = checkpoint_open(&c, s->j->model, e);

    if (rc)
        return rc;
    for (size_t i = begin; !rc && i < end; i++) {
        struct piece *p = &s->piece[i];

        rc = checkpoint_most(c, checkpoint_tensor(c, p->tensor), p->first, p->n,
                             &buf, &cap, &p->most, e);
    }
    free(buf);
    checkpoint_close(c);
    return rc;
}

static void look(void *ctx, size_t begin, size_t end)
{
    struct search *s = ctx;
    struct err e;

    if (look_at(s, begin, end, &e) < 0)
        threads_error_add(&s->error, begin, &e);
}

static bool is_linear(const struct model_config *config,
                      const struct module_choice *choice,
                      const struct ck_tensor *t)
{
    static const char end[] = ".weight";
    size_t n = strlen(t->name), k = strlen(end);
    char module[MODULE_PATH_MAX];
    struct linear l;

    if (n <= k || n - k >= sizeof(module) || strcmp(t->name + n - k, end) != 0)
        return false;
    memcpy(module, t->name, n - k);
    module[n - k] = 0;
    return model_find_linear(config, module, &l) &&
           module_chosen(choice, module);
}

/* What is only to be finite: what stays as it is, such as embeddings, the output
 * layer, routers and norms.  Layers depend on all of it, and forge-shard would
 * refuse the result. */
static bool is_kept(const struct ck_tensor *t)
{
    return dtype_is_float(t->dtype) && dtype_bits(t->dtype) >= 16;
}

/* The largest |w| that a grid with an F16 scale can represent.  Q4_1 has -z s as
 * an F16, too, which is at most the least weight and half a step, 1/15 of it. */
static double limit(const struct job *j)
{
    const struct grid_rules rules = job_grids(j);

    if (j->layout == JOB_GGUF && grid_rules_any(&rules, false))
        return F16_MOST * 15 / 16;
    return grid_most(grid_rules_any(&rules, true), DT_F16);
}

static int judge(struct job *j, const char *name, float most, struct err *e)
{
    if ((double)most <= limit(j) || j->bf16_scales)
        return 0;
    if (j->layout != LAYOUT_CT)
        return err_set(e, E_CONFIG,
                       "'%s': has a weight of %g, and the scales of this "
                       "layout, F16, reach %g; --layout compressed-tensors "
                       "stores BF16 ones",
                       name, (double)most, limit(j));
    j->bf16_scales = true;
    remark("'%s': has a weight of %g, beyond F16 scales: scales are BF16", name,
           (double)most);
    return 0;
}

static int add_pieces(struct search *s, const struct ck_tensor *t,
                      size_t tensor, bool linear, struct err *e)
{
    uint64_t rows = t->ndim ? t->dims[0] : 1, each = rows;

    if (checkpoint_has_rows(t)) {
        each = PIECE / (t->bytes / rows + 1) + 1;
        each = each < rows ? each : rows;
    }
    for (uint64_t r = 0; r < rows; r += each) {
        if (s->n == s->cap) {
            size_t cap = 2 * s->cap + 256;

            if (mem_grow(&s->piece, cap * sizeof(*s->piece), "weights", e) < 0)
                return e->code;
            s->cap = cap;
        }
        s->piece[s->n++] =
            (struct piece){ .tensor = tensor,
                            .linear = linear,
                            .first = r,
                            .n = rows - r < each ? rows - r : each };
    }
    return 0;
}

/* The pieces' largest; each thread takes consecutive ones and opens the checkpoint
 * itself. */
static int search(struct search *s, struct err *e)
{
    size_t threads = (size_t)threads_count();

    threads_error_init(&s->error);
    threads_for(s->n, (s->n + threads - 1) / threads, look, s);
    return threads_error_take(&s->error, e);
}

static int search_all(struct job *j, const struct checkpoint *c,
                      const struct model_config *config, struct err *e)
{
    const struct module_choice choice = job_choice(j);
    struct search s = { .j = j };
    const struct piece *worst = NULL;
    int rc = 0;

    for (size_t i = 0; !rc && i < checkpoint_count(c); i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, i);
        bool linear = is_linear(config, &choice, t);

        if (t->bytes && (linear || is_kept(t)))
            rc = add_pieces(&s, t, i, linear, e);
    }
    if (!rc && s.n)
        rc = search(&s, e);
    for (size_t i = 0; !rc && i < s.n; i++) {
        const struct piece *p = &s.piece[i];

        if (!isfinite(p->most))
            rc = err_set(e, E_DATA, "'%s': a weight is not finite",
                         checkpoint_tensor(c, p->tensor)->name);
        if (p->linear && (!worst || p->most > worst->most))
            worst = p;
    }
    if (!rc && worst) {
        rc =
            judge(j, checkpoint_tensor(c, worst->tensor)->name, worst->most, e);
        j->most = (double)worst->most;
    }
    free(s.piece);
    return rc;
}

static bool same_globs(const struct globs *a, const struct globs *b)
{
    bool same = a->n == b->n;

    for (int i = 0; same && i < a->n; i++)
        same = !strcmp(a->item[i], b->item[i]);
    return same;
}

int extremes_check(struct job *j, const struct job *known, struct err *e)
{
    struct model_config config;
    struct checkpoint *c;
    int rc;

    j->most = known && same_globs(&j->only, &known->only) &&
                      same_globs(&j->skip, &known->skip) ?
                  known->most :
                  0;
    if (j->most > 0 && (j->most <= limit(j) || j->bf16_scales))
        return 0;
    rc = job_config(j, &config, e);
    if (rc)
        return rc;
    rc = checkpoint_open(&c, j->model, e);
    if (!rc) {
        rc = search_all(j, c, &config, e);
        checkpoint_close(c);
    }
    model_config_release(&config);
    return rc;
}
