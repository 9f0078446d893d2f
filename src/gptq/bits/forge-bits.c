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
#include "gptq/bits/layer.h"

struct settings {
    struct tool tool;
    double bits;
    int64_t group;
    int asymmetric;
    struct opt_list tries, modules, skip;
    const char *fisher, *output, *model, *input;
};

struct run {
    const struct settings *s;
    struct stream_reader *in;
    struct bits_layer layer;
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
          "another grid, in the words of forge-grid's rules; may be repeated",
          &s->tries, 0, 0, false },
        { OPT_LIST, 0, "modules", "GLOB",
          "only linears whose path matches get a grid; may be repeated [all]",
          &s->modules, 0, 0, false },
        { OPT_LIST, 0, "skip", "GLOB",
          "linears whose path matches get none; may be repeated", &s->skip, 0,
          0, false },
        { OPT_OUTPUT, 'o', "output", "FILE", "write the rules to FILE",
          &s->output, 0, 0, true },
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

/* Unlike module_chosen()'s default, kv_b_proj is one of all. */
static struct module_choice choice(const struct settings *s)
{
    static const char *const all[] = { "*" };
    bool some = s->modules.count > 0;

    return (struct module_choice){ some ? s->modules.item : all,
                                   some ? s->modules.count : 1, s->skip.item,
                                   s->skip.count };
}

static int read_all(struct run *r, struct err *e)
{
    struct frame f;
    int rc;

    while ((rc = stream_next(r->in, &f, e)) > 0) {
        rc = f.role == ROLE_HESSIAN ? bits_hessian(&r->layer, &f, e) :
             f.role == ROLE_WEIGHT  ? bits_weight_frame(&r->layer, &f, e) :
                                      0;
        if (rc < 0)
            return rc;
        progress_step(&r->progress, f.name, f.len);
    }
    if (!rc && !r->layer.units.n)
        return err_set(e, E_DATA, "the input has no weights");
    return rc;
}

/* The rules, and what they come to in a comment. */
static int write_rules(struct run *r, struct err *e)
{
    const struct bits_units *u = &r->layer.units;
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
    struct bits_units *u = &r->layer.units;
    double bits, cost;

    if (hessian_file_open(&r->layer.fisher, r->s->fisher, NULL, e) < 0 ||
        hessian_file_open(&r->layer.hessians, NULL, NULL, e) < 0 ||
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
    struct run r = { .s = &s, .layer = { .layer = -1 } };
    struct model_config config;
    struct err e;

    parse(&s, argc, argv);
    if (plan_grids(&s, &r.layer.units.grids, &e) < 0 ||
        model_config_read(&config, s.model, &e) < 0)
        die_err(&e);
    config.kv_b = config.mla.kv_lora; /* there may be its weights */
    r.layer.choice = choice(&s);
    r.layer.units.config = &config;
    r.layer.units.fisher = s.fisher != NULL;
    progress_start(&r.progress, s.tool.progress, "tensors", 0);
    if (run(&r, &e) < 0)
        die_err(&e);
    progress_finish(&r.progress, NULL);
    bits_units_release(&r.layer.units);
    hessian_file_close(r.layer.hessians);
    hessian_file_close(r.layer.fisher);
    stream_close(r.in);
    model_config_release(&config);
    free(r.layer.inputs);
    return 0;
}
