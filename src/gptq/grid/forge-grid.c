/* forge-grid - choose the grid that every group of weights is rounded to.
 *
 * Adds a `qmeta` frame behind each `weight` frame; see forge-grid(1). */
#include <stdlib.h>
#include <string.h>

#include "arch/gridrules.h"
#include "common/cli/tool.h"
#include "common/math/quant.h"
#include "device/device.h"
#include "device/lent_fp8.h"
#include "gptq/grid/grid.h"
#include "gptq/grid/grid_table.h"
#include "gptq/hessian_file.h"
#include "gptq/solve/factor.h"

enum { SEARCH_AUTO = 0 };

struct settings {
    struct tool tool;
    const char *hessian, *loans;
    int64_t group, candidates;
    int symmetric, asymmetric;
    struct opt_list rules; /* --grid */
    int search;            /* SEARCH_AUTO, or 1 + enum grid_search */
    double norm;           /* 0: the search's default */
    int scale_dtype;       /* index into the words of --scale-dtype */
    struct device_choice device;
};

struct run {
    struct settings *s;
    struct grid_params params;
    struct grid_rules rules;
    struct stream_reader *in;
    struct stream_writer *out;
    struct hessian_file *hessians;
    struct ledger *ledger;
    struct progress progress;
    float *importance;
    uint64_t modules;
};

static int parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_STR, 0, "hessian", "FILE",
          "hessians of the inputs, where they are not in the stream",
          &s->hessian, 0, 0, OPT_FILE },
        { OPT_INT, 'g', "group", "G",
          "inputs per scale, -1: all of a linear [128]", &s->group, -1,
          GROUP_ALL, false },
        { OPT_FLAG, 0, "symmetric", NULL,
          "the zero point is 8 everywhere [default]", &s->symmetric, 0, 0,
          false },
        { OPT_FLAG, 0, "asymmetric", NULL, "a zero point for each group",
          &s->asymmetric, 0, 0, false },
        { OPT_LIST, 0, "grid", "PATTERN=WORD[,WORD]...",
          "of weights whose name matches: inputs per scale, sym, asym, 4bit, "
          "8bit; may be repeated, the last one decides",
          &s->rules, 0, 0, false },
        { OPT_CHOICE, 0, "search", "auto|" GRID_SEARCH_WORDS,
          "error to minimize; auto: hessian if there is one, else lp [auto]",
          &s->search, 0, 0, false },
        { OPT_FLOAT, 0, "norm", "P",
          "power of the absolute error [lp: 2.4, hessian: 2]", &s->norm, 1, 4,
          false },
        { OPT_INT, 0, "candidates", "N", "scales tried for each group [64]",
          &s->candidates, 1, GRID_CANDIDATES_MAX, false },
        { OPT_CHOICE, 0, "scale-dtype", "f16|bf16",
          "type in which scales are stored [f16]", &s->scale_dtype, 0, 0,
          false },
        GPU_OPTIONS(&s->device),
        LOANS_OPTION(&s->loans),
        TOOL_COMMON(&s->tool),
        TOOL_STREAM(&s->tool),
        TOOL_END
    };
    int i = opt_parse(
        argc, argv, "[option...] [file] > weights-and-grids",
        "Choose the scale and zero point of every group of weights.", table);
    struct err e;

    if (argc - i > 1)
        die(E_USAGE, "takes one file at most (try --help)");
    if (s->symmetric && s->asymmetric)
        die(E_USAGE, "--symmetric and --asymmetric exclude each other");
    if (grid_options(&s->group, s->rules.item, s->rules.count, &e))
        die_err(&e);
    tool_apply(&s->tool);
    return i;
}

static void plan(struct run *r)
{
    const struct settings *s = r->s;
    struct grid_params *p = &r->params;

    r->rules = (struct grid_rules){ s->rules.item, s->rules.count,
                                    (uint64_t)s->group, !s->asymmetric };
    p->candidates = (int)s->candidates;
    p->scale_dtype = s->scale_dtype ? DT_BF16 : DT_F16;
}

static int open_all(struct run *r, const char *path, struct err *e)
{
    const struct settings *s = r->s;
    struct stream_expect expect = { .key = s->tool.expect_key, .loans = true };
    struct stream_output out = { .path = s->tool.output, .key = s->tool.key };
    int rc;

    if ((rc = ledger_open(&r->ledger, s->loans, e)) < 0 ||
        (rc = device_open(&s->device, &grid_plugin, e)) < 0 ||
        (rc = ledger_reads(r->ledger, LEDGER_GRIDS, e)) < 0 ||
        (rc = stream_open(&r->in, path, &expect, e)) < 0)
        return rc;
    if ((rc = hessian_file_open(&r->hessians, s->hessian, NULL, e)) < 0 ||
        (rc = stream_create(&r->out, &out, e)) < 0)
        return rc;
    stream_tie(r->in, r->out);
    stream_pass(r->in, r->out, ROLE_HESSIAN, hessian_file_look, r->hessians);
    return 0;
}

static void choose_search(struct run *r)
{
    const struct settings *s = r->s;
    struct grid_params *p = &r->params;

    p->search = s->search ? (enum grid_search)(s->search - 1) :
                hessian_file_any(r->hessians) ? GRID_HESSIAN :
                                                GRID_LP;
    p->norm = s->norm > 0 ? s->norm : p->search == GRID_HESSIAN ? 2 : 2.4;
    p->importance = NULL;
}

/* importance = diag H + FACTOR_DAMPING mean(diag H): damped as forge-solve does by
 * default, but for dead inputs, which its mean leaves out. */
static int set_importance(struct run *r, const struct frame *w, struct err *e)
{
    uint64_t cols = w->dims[1];
    struct hessian_entry *entry;
    const float *d;
    double mean = 0;

    choose_search(r);
    if (r->params.search != GRID_HESSIAN)
        return 0;
    if (hessian_file_find(r->hessians, w->name, cols, &entry, e) < 0 ||
        hessian_file_diagonal(r->hessians, entry, &d, e) < 0 ||
        mem_grow(&r->importance, cols * sizeof(float), w->name, e) < 0)
        return e->code;
    for (uint64_t i = 0; i < cols; i++)
        mean += d[i] / (double)cols;
    for (uint64_t i = 0; i < cols; i++)
        r->importance[i] = (float)(d[i] + FACTOR_DAMPING * mean);
    r->params.importance = r->importance;
    return 0;
}

static int weight(struct run *r, const struct frame *w, struct err *e)
{
    struct grid_params *p = &r->params;
    struct frame f = { .role = ROLE_QMETA,
                       .dtype = DT_QMETA4,
                       .ndim = 2,
                       .scale_dtype = p->scale_dtype };
    const struct module_grid of = grid_rules_find(&r->rules, w->name);
    struct fp8_matrix fp8;
    const void *data;
    uint32_t *meta;
    int rc;

    if (w->ndim != 2 || !dtype_is_float(w->dtype) || !w->dims[0] || !w->dims[1])
        return err_set(e, E_DATA, "'%s': a weight is a matrix of floats",
                       w->name);
    p->rows = f.dims[0] = w->dims[0];
    p->cols = w->dims[1];
    p->group = quant_group(of.group, p->cols);
    p->symmetric = of.symmetric, p->bits = of.bits;
    f.group = (uint32_t)p->group;
    p->dtype = w->dtype;
    f.dims[1] = quant_groups(p->cols, p->group);
    f.len = f.dims[0] * f.dims[1] * sizeof(*meta); /* groups <= weights */
    if (lent_weight(r->ledger, w, &data, &fp8, e) < 0 ||
        set_importance(r, w, e) < 0 || !(meta = mem_alloc(f.len, w->name, e)))
        return e->code;
    p->fp8 = data ? NULL : &fp8;
    memcpy(f.name, w->name, sizeof(f.name));
    f.data = meta;
    /* search first: writing may block until forge-solve has factored H */
    rc = grid_search(p, data, meta, e);
    if (rc >= 0)
        rc = grid_reach(p, data, meta, e);
    if (rc < 0)
        err_prefix(e, "'%s'", w->name);
    else if ((rc = stream_write(r->out, w, e)) >= 0)
        rc = stream_write(r->out, &f, e);
    free(meta);
    r->modules++;
    return rc;
}

static int run(struct run *r, struct err *e)
{
    bool first = true;
    struct frame f;
    int rc;

    while ((rc = stream_next(r->in, &f, e)) > 0) {
        if (first &&
            (stream_inherit(r->out, stream_head(r->in), e) < 0 ||
             stream_inherit(r->out, hessian_file_head(r->hessians), e) < 0))
            return e->code;
        first = false;
        if (f.role == ROLE_HESSIAN && !f.passed &&
            (f.loan.lent ?
                 hessian_file_told(r->hessians, &f, e) :
                 hessian_file_look(r->hessians, &f, 0, f.data, f.len, e)) < 0)
            return e->code;
        rc = f.role == ROLE_WEIGHT ? weight(r, &f, e) :
             f.passed              ? 0 :
                                     stream_write(r->out, &f, e);
        if (rc < 0)
            return rc;
        progress_step(&r->progress, f.name, f.len);
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct settings s = { .group = 128, .candidates = 64 };
    struct run r = { .s = &s };
    struct err e;
    int first = parse(&s, argc, argv);

    plan(&r);
    if (open_all(&r, first < argc ? argv[first] : NULL, &e) < 0)
        die_err(&e);
    progress_start(&r.progress, s.tool.progress, "tensors", 0);
    if (run(&r, &e) < 0)
        tool_fail(r.out, &e);
    tool_finish(r.out, &r.progress, NULL);
    stream_close(r.in);
    hessian_file_close(r.hessians);
    ledger_close(r.ledger);
    free(r.importance);
    return 0;
}
