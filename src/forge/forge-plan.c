/* forge-plan - print what quantizing a model will take, as lines "name=value".
 * See forge-plan(1). */
#include <stdio.h>
#include <stdlib.h>

#include "common/cli/opt.h"
#include "forge/plan.h"

static const char *parse(int argc, char **argv, int64_t *group)
{
    const struct opt table[] = {
        { OPT_INT, 'g', "group", "G", "inputs per scale [128]", group, 1,
          1 << 20, false },
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
        { "token_flops", p->token_flops },
        { "second_flops", p->second_flops },
        { "fast_flops", p->solve_flops[EFFORT_FAST] },
        { "default_flops", p->solve_flops[EFFORT_DEFAULT] },
        { "best_flops", p->solve_flops[EFFORT_BEST] },
        { "target_flops", p->target_flops[EFFORT_DEFAULT] },
        { "fisher_flops", p->fisher_flops },
    };

    for (size_t i = 0; i < ARRAY_LEN(row); i++)
        printf("%s=%.0f\n", row[i].name, row[i].value);
    printf("version=%s\n", FORGE_VERSION);
}

int main(int argc, char **argv)
{
    int64_t group = 128;
    const char *dir = parse(argc, argv, &group);
    const struct module_choice all = { 0 };
    struct grid_rules grids = { .symmetric = true };
    struct plan p;
    struct err e;

    grids.group = (uint64_t)group;
    if (plan_model(&p, dir, &grids, &all, &e) < 0)
        die_err(&e);
    print(&p);
    plan_release(&p);
    if (flush_stdout(&e) < 0)
        die_err(&e);
    return 0;
}
