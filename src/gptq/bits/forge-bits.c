/* forge-bits - choose the grid of each linear within a budget of bits.
 *
 * Reads Hessians and weights; prints rules for forge-grid.  See
 * forge-bits(1). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cli/tool.h"
#include "common/io/file.h"
#include "gptq/bits/units.h"
#include "gptq/hessian_file.h"
#include "gptq/solve/factor.h"

struct settings {
    struct tool tool;
    double bits;
    int64_t group;
    int asymmetric;
    struct opt_list tries;
    const char *fisher, *output, *model, *input;
};

struct run {
    const struct settings *s;
    struct stream_reader *in;
    struct hessian_file *hessians, *fisher;
    struct bits_units units;
    int64_t layer;   /* of the last Hessian */
    uint64_t tokens; /* of that layer: the most that one of its inputs has */
    float *inputs;   /* damped diagonal of H */
    struct progress progress;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_FLOAT, 'b', "bits", "B",
          "bits for each weight, scales and zeros included", &s->bits, 2, 16,
          false },
        { OPT_STR, 0, "fisher", "FILE",
          "second moments of the gradients of outputs", &s->fisher, 0, 0,
          true },
        { OPT_INT, 'g', "group", "G",
          "inputs per scale where no rule says otherwise [128]", &s->group, 8,
          1 << 20, false },
        { OPT_FLAG, 0, "asymmetric", NULL,
          "a zero point for each group where no rule says otherwise",
          &s->asymmetric, 0, 0, false },
        { OPT_LIST, 0, "try", "WORD[,WORD]...",
          "another grid, as the words of forge-grid --grid; may be repeated",
          &s->tries, 0, 0, false },
        { OPT_STR, 'o', "output", "FILE", "write the rules to FILE", &s->output,
          0, 0, true },
        { OPT_STR, 0, "expect-key", "KEY",
          "refuse an input with another settings key", &s->tool.expect_key, 0,
          0, true },
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "--bits B [option...] MODEL [FILE] > rules",
                      "Choose grids within a budget of bits for each weight.",
                      table);

    if (argc - i < 1 || argc - i > 2)
        die(E_USAGE, "want MODEL and at most one FILE (try --help)");
    if (s->bits <= 0)
        die(E_USAGE, "want --bits (try --help)");
    s->model = argv[i];
    s->input = argv[i + 1];
    tool_apply(&s->tool);
}

static int plan_grids(const struct settings *s, struct bits_grids *g,
                      struct err *e)
{
    g->grid[g->n++] =
        (struct module_grid){ (uint64_t)s->group, !s->asymmetric, 4 };
    for (int i = 0; i < s->tries.count; i++) {
        char text[OPT_WORD * 4];
        const char *rule = text;
        const struct grid_rules rules = { &rule, 1, (uint64_t)s->group,
                                          !s->asymmetric };

        if (g->n == BITS_GRIDS)
            return err_set(e, E_USAGE, "--try: more than %d grids",
                           BITS_GRIDS - 1);
        if (snprintf(text, sizeof(text), "*=%s", s->tries.item[i]) >=
            (int)sizeof(text))
            return err_set(e, E_USAGE, "--try: '%.40s...' is too long",
                           s->tries.item[i]);
        if (grid_rule_check(text, e) < 0)
            return e->code;
        g->grid[g->n++] = grid_rules_find(&rules, "");
    }
    return 0;
}

/* The tokens of a layer, of which an expert has a part. */
static void count(struct run *r, const struct frame *f)
{
    int64_t layer = tensor_name_layer(f->name);

    if (layer != r->layer)
        r->tokens = 0;
    r->layer = layer;
    if (f->samples > r->tokens)
        r->tokens = f->samples;
}

/* r->inputs of a Hessian (errors.h), with the prior and the damping that forge quantize
 * solves with. */
static int factor(struct run *r, const struct frame *frame, struct err *e)
{
    const struct hessian_entry *h = hessian_file_taken(r->hessians);
    const struct factor_params p = { .cols = h->cols,
                                     .block = h->block,
                                     .group = (uint64_t)r->s->group,
                                     .order = ORDER_ACTIVATION,
                                     .damping = 0.01 };
    float *data = mem_alloc(frame->len, h->name, e);
    struct factor *f = NULL;
    int rc;

    if (!data ||
        mem_grow(&r->inputs, h->cols * sizeof(float), h->name, e) < 0) {
        free(data);
        return e->code;
    }
    memcpy(data, frame->data, frame->len);
    if (!tensor_name_is_expert(h->name))
        (void)hessian_file_add_prior(h, 2, data);
    rc = factor_build(&f, &p, data, e);
    free(data);
    if (rc < 0)
        return err_prefix(e, "'%s'", h->name);
    /* not positive definite: forge-solve rounds to nearest */
    for (uint64_t c = 0; c < h->cols; c++) {
        float x = rc ? 0 : factor_at_row(f, c, c)[c % FACTOR_PANEL];

        r->inputs[rc ? c : f->input[c]] = rc ? h->diagonal[c] : x * x;
    }
    factor_free(f);
    return 0;
}

static int hessian(struct run *r, const struct frame *f, struct err *e)
{
    count(r, f);
    if (hessian_file_look(r->hessians, f, 0, f->data, f->len, e) < 0)
        return e->code;
    return f->modules && *f->modules ? factor(r, f, e) : 0;
}

static int set_inputs(struct run *r, const struct frame *w,
                      struct bits_module *m, struct bits_weight *b,
                      struct err *e)
{
    struct hessian_entry *entry;

    if (hessian_file_find(r->hessians, w->name, w->dims[1], &entry, e) < 0 ||
        hessian_file_diagonal(r->hessians, entry, &b->squares, e) < 0)
        return e->code;
    b->inputs = r->inputs;
    m->share = m->l.expert >= 0 && r->tokens ?
                   (double)entry->samples / (double)r->tokens :
                   1;
    return 0;
}

static int weight(struct run *r, const struct frame *w, struct err *e)
{
    struct bits_module m = { 0 };
    struct bits_weight b = {
        .name = w->name, .data = w->data, .dtype = w->dtype, .inputs = NULL
    };
    struct hessian_entry *entry;

    if (w->ndim != 2 || !dtype_is_float(w->dtype) || !w->dims[0] || !w->dims[1])
        return err_set(e, E_DATA, "'%s': a weight is a matrix of floats",
                       w->name);
    if (!model_find_linear(r->units.config, w->name, &m.l) ||
        (uint64_t)m.l.rows != w->dims[0] || (uint64_t)m.l.cols != w->dims[1])
        return err_set(e, E_DATA, "'%s' is no linear of '%s'", w->name,
                       r->s->model);
    b.rows = w->dims[0];
    b.cols = w->dims[1];
    if (set_inputs(r, w, &m, &b, e) < 0)
        return e->code;
    m.known = r->fisher && hessian_file_has(r->fisher, w->name);
    if (m.known &&
        (hessian_file_find(r->fisher, w->name, b.rows, &entry, e) < 0 ||
         hessian_file_diagonal(r->fisher, entry, &b.outputs, e) < 0))
        return e->code;
    return bits_measure(&b, &r->units.grids, &m.errors, e) < 0 ?
               e->code :
               bits_units_add(&r->units, &m, e);
}

static int read_all(struct run *r, struct err *e)
{
    struct frame f;
    int rc;

    while ((rc = stream_next(r->in, &f, e)) > 0) {
        rc = f.role == ROLE_HESSIAN ? hessian(r, &f, e) :
             f.role == ROLE_WEIGHT  ? weight(r, &f, e) :
                                      0;
        if (rc < 0)
            return rc;
        progress_step(&r->progress, f.name, f.len);
    }
    if (!rc && !r->units.n)
        return err_set(e, E_DATA, "the input has no weights");
    return rc;
}

/* The rules, and what they come to in a comment. */
static int write_rules(struct run *r, struct err *e)
{
    const struct bits_units *u = &r->units;
    double bits, cost, plain, before;
    char *text, *all;
    int rc = bits_units_rules(u, &text, e), n;

    if (rc < 0)
        return rc;
    bits_units_sum(u, -1, &bits, &cost);
    bits_units_sum(u, 0, &plain, &before);
    n = asprintf(&all,
                 "# %.4f bits for each of %.0f weights; cost %.4g, of the "
                 "default grid %.4g in %.4f bits\n%s",
                 bits / u->weights, u->weights, cost, before,
                 plain / u->weights, text);
    free(text);
    if (n < 0)
        return err_set(e, E_TEMP, "rules: out of memory");
    if (r->s->output)
        rc = publish_text(r->s->output, all, (size_t)n, e);
    else if (fputs(all, stdout) < 0 || fflush(stdout))
        rc = err_set(e, E_IO, "'<stdout>': cannot write:");
    free(all);
    return rc;
}

static int run(struct run *r, struct err *e)
{
    const struct stream_expect expect = { .key = r->s->tool.expect_key };
    struct bits_units *u = &r->units;
    double bits, cost;

    if (hessian_file_open(&r->fisher, r->s->fisher, NULL, e) < 0 ||
        hessian_file_open(&r->hessians, NULL, NULL, e) < 0 ||
        stream_open(&r->in, r->s->input, &expect, e) < 0 ||
        read_all(r, e) < 0 || bits_units_cost(u, e) < 0)
        return e->code;
    if (bits_choose(u->unit, u->n, u->grids.n, r->s->bits * u->weights))
        return write_rules(r, e);
    bits_units_sum(u, -1, &bits, &cost);
    return err_set(e, E_CONFIG, "--bits %g: the least of these grids is %.4f",
                   r->s->bits, bits / u->weights);
}

int main(int argc, char **argv)
{
    struct settings s = { .group = 128 };
    struct run r = { .s = &s, .layer = -1 };
    struct model_config config;
    struct err e;

    parse(&s, argc, argv);
    if (plan_grids(&s, &r.units.grids, &e) < 0 ||
        model_config_read(&config, s.model, &e) < 0)
        die_err(&e);
    config.kv_b = config.mla.kv_lora; /* there may be its weights */
    r.units.config = &config;
    r.units.fisher = s.fisher != NULL;
    progress_start(&r.progress, s.tool.progress, "tensors", 0);
    if (run(&r, &e) < 0)
        die_err(&e);
    progress_finish(&r.progress, NULL);
    bits_units_release(&r.units);
    hessian_file_close(r.hessians);
    hessian_file_close(r.fisher);
    stream_close(r.in);
    model_config_release(&config);
    free(r.inputs);
    return 0;
}
