/* solve_options.c - see solve_options.h. */
#include "gptq/solve/solve_options.h"

int solve_parse(struct solve_settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_STR, 0, "hessian", "FILE",
          "Hessians of the inputs, if not in the stream; without any: round to "
          "nearest",
          &s->module.hessian, 0, 0, OPT_FILE },
        { OPT_STR, 0, "fisher", "FILE",
          "Fisher information of outputs (forge-gradient, forge-hessian): "
          "solve rows together where FILE has it",
          &s->module.fisher, 0, 0, OPT_FILE },
        { OPT_CHOICE, 0, "method", "gptq|rtn",
          "rtn: round to nearest, even with Hessians [gptq]", &s->method, 0, 0,
          false },
        { OPT_CHOICE, 0, "order", ORDER_WORDS,
          "order in which inputs are quantized [activation]", &s->order, 0, 0,
          false },
        { OPT_CHOICE, 0, "effort", EFFORT_WORDS,
          "fast: the given grids and order; default: grids chosen in the "
          "solve, codes refined; best: more of both [fast]",
          &s->effort, 0, 0, false },
        { OPT_INT, 0, "factors", "N",
          "factors tried for each scale, asymmetric: N by N [the effort's]",
          &s->factors, 1, 256, false },
        { OPT_INT, 0, "sweeps", "N",
          "sweeps that refine codes and scales, at most [the effort's]",
          &s->sweeps, 0, 1000, false },
        { OPT_FLAG, 0, "positive", NULL, "no negative scales", &s->positive, 0,
          0, false },
        { OPT_FLOAT, 0, "alpha", "X",
          "weight of the target correction by input drift [0.75]",
          &s->module.alpha, 0, 1, false },
        { OPT_FLOAT, 0, "beta", "X",
          "weight of the target correction by outputs [0.75]", &s->module.beta,
          0, 1, false },
        { OPT_FLOAT, 0, "damping", "X",
          "added to the diagonal of H: X times its mean [0.01]",
          &s->module.damping, 1e-9, 1, false },
        { OPT_FLOAT, 0, "prior", "K",
          "add K trace(H) / tokens to the diagonal of H [0]", &s->module.prior,
          0, 1000, false },
        { OPT_FLAG, 0, "strict", NULL,
          "a Hessian that cannot be factored is an error", &s->strict, 0, 0,
          true },
        { OPT_OUTPUT, 0, "report", "FILE",
          "write a line of JSON for each module to FILE", &s->report, 0, 0,
          true },
        DEVICE_OPTIONS(&s->device),
        LOANS_OPTION(&s->loans),
        TOOL_COMMON(&s->tool),
        TOOL_STREAM(&s->tool),
        TOOL_END
    };
    int i;

    s->order = ORDER_ACTIVATION;
    s->sweeps = -1;
    s->module.damping = FACTOR_DAMPING;
    s->module.alpha = s->module.beta = 0.75;
    i = opt_parse(argc, argv, "[option...] [file] > codes",
                  "Choose the 4-bit codes of weights by GPTQ.", table);
    s->module.order = (enum factor_order)s->order;
    s->module.nearest = s->method == 1;
    s->module.strict = s->strict;
    s->module.effort = (enum effort)s->effort;
    s->module.negative = !s->positive;
    s->module.sweeps = (int)s->sweeps;
    s->module.factors = (int)s->factors;
    tool_apply(&s->tool);
    return i;
}
