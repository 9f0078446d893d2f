/* forge-plan - print what quantizing a model will take, as lines "name=value".
 * See forge-plan(1). */
#include <stdio.h>
#include <stdlib.h>

#include "common/cli/opt.h"
#include "common/io/json.h"
#include "forge/plan.h"
#include "forge/stops.h"

static const char *parse(int argc, char **argv, int64_t *group, int64_t *parts)
{
    const struct opt table[] = {
        { OPT_INT, 'g', "group", "G", "inputs per scale [128]", group, 1,
          1 << 20, false },
        { OPT_INT, 0, "parts", "P",
          "print the stops of a run in P parts instead, a line of JSON each",
          parts, 1, PARTS_MAX, false },
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false }
    };
    int i = opt_parse(
        argc, argv, "[option]... model",
        "Print sizes and operations that quantizing a model will take.", table);

    if (argc - i != 1)
        die(E_USAGE, "want one model directory (try --help)");
    return argv[i];
}

static void print(const struct plan *p)
{
    const struct {
        const char *name;
        double value;
    } row[] = {
        { "layers", (double)p->layers },
        { "modules", (double)p->modules },
        { "hidden_size", (double)p->hidden_size },
        { "bf16_experts", (double)p->bf16_experts },
        { "parameters", (double)p->parameters },
        { "quantized", (double)p->quantized },
        { "bytes_in", (double)p->bytes_in },
        { "bytes_out", (double)p->bytes_out },
        { "hessian_bytes", (double)p->hessian_bytes },
        { "layer_hessian_bytes", (double)p->layer_hessian_bytes },
        { "state_bytes", (double)p->state_bytes },
        { "layer_bytes", (double)p->layer_bytes },
        { "lent_bytes", p->lent_bytes[1] },
        { "token_flops", p->token_flops },
        { "second_flops", p->second_flops },
        { "fast_flops", p->solve_flops[EFFORT_FAST] },
        { "default_flops", p->solve_flops[EFFORT_DEFAULT] },
        { "best_flops", p->solve_flops[EFFORT_BEST] },
        { "target_flops", p->target_flops[EFFORT_DEFAULT] },
        { "fisher_flops", p->fisher_flops[EFFORT_BEST] },
    };

    for (size_t i = 0; i < ARRAY_LEN(row); i++)
        printf("%s=%.0f\n", row[i].name, row[i].value);
    printf("version=%s\n", FORGE_VERSION);
}

static int print_stop(const struct stop *s, struct err *e)
{
    const struct {
        const char *name;
        double value;
    } row[] = {
        { "layer", (double)s->layer },
        { "shares", (double)s->shares },
        { "spread", (double)s->spread },
        { "pieces", (double)s->pieces },
        { "modules", (double)s->modules },
        { "experts", (double)s->experts },
        { "forward", s->forward },
        { "sums", s->sums },
        { "share_sums", s->share_sums },
        { "factor", s->factor },
        { "solve", s->solve },
        { "solve_modules", s->solve_modules },
        { "expert_factors", s->expert_factors },
        { "units", (double)s->units },
        { "weights", (double)s->weights },
        { "expert_forward", s->expert_forward },
        { "expert_weights", (double)s->expert_weights },
        { "moments", (double)s->moments },
        { "by_rows", (double)s->by_rows },
        { "rows", (double)s->rows },
        { "outputs", (double)s->outputs },
        { "codes", (double)s->codes },
        { "whole", (double)s->whole },
    };
    struct json_writer w;
    int rc;

    jw_init(&w, 0);
    jw_begin(&w, '{');
    jw_key(&w, "point"), jw_string(&w, s->point);
    for (size_t i = 0; i < ARRAY_LEN(row); i++)
        jw_key(&w, row[i].name), jw_number(&w, row[i].value);
    jw_end(&w, '}');
    rc = w.failed ? err_set(e, E_TEMP, "out of memory") : puts(w.text);
    free(w.text);
    return rc < 0 ? rc : 0;
}

/* As of forge quantize's defaults: both streams, 128 x 512 tokens. */
static int print_stops(const char *dir, int64_t group, int64_t parts,
                       struct err *e)
{
    struct job j = { .effort = EFFORT_DEFAULT,
                     .propagate = PROPAGATE_BOTH,
                     .sequences = 128,
                     .seqlen = 512,
                     .group = group,
                     .symmetric = true,
                     .parts = parts,
                     .step = STEP_COST_AUTO,
                     .away = true };
    struct stops s;
    int rc;

    snprintf(j.model, sizeof(j.model), "%s", dir);
    rc = stops_list(&s, &j, e);
    for (size_t i = 0; i < s.n && rc >= 0; i++)
        rc = print_stop(&s.stop[i], e);
    stops_release(&s);
    return rc;
}

int main(int argc, char **argv)
{
    int64_t group = 128, parts = 0;
    const char *dir = parse(argc, argv, &group, &parts);
    const struct module_choice all = { 0 };
    struct grid_rules grids = { .symmetric = true };
    struct plan p;
    struct err e;

    grids.group = (uint64_t)group;
    if (parts) {
        if (print_stops(dir, group, parts, &e) < 0 || flush_stdout(&e) < 0)
            die_err(&e);
        return 0;
    }
    if (plan_model(&p, dir, &grids, &all, &e) < 0)
        die_err(&e);
    print(&p);
    plan_release(&p);
    if (flush_stdout(&e) < 0)
        die_err(&e);
    return 0;
}
