/* solve_options.c - see solve_options.h. */
#include "gptq/solve/solve_options.h"

int solve_parse(struct solve_settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_STR, 0, "hessian", "FILE",
          "hessians of the inputs, where they are not in the stream; without "
          "any: round to nearest",
          &s->module.hessian, 0, 0, true },
        { OPT_STR, 0, "fisher", "FILE",
          "solve the rows of modules together that FILE has the second moments "
          "of outputs' gradients of (forge-gradient)",
          &s->module.fisher, 0, 0, true },
        { OPT_CHOICE, 0, "method", "gptq|rtn",
          "rtn: round to nearest even with hessians [gptq]", &s->method, 0, 0,
          false },
        { OPT_CHOICE, 0, "order", ORDER_WORDS,
          "order in which inputs are quantized [activation]", &s->order, 0, 0,
          false },
        { OPT_CHOICE, 0, "effort", EFFORT_WORDS,
          "fast: the grids and the order given; default: grids chosen on the "
          "way, codes refined; best: more of both [fast]",
          &s->effort, 0, 0, false },
        { OPT_INT, 0, "factors", "N",
          "try N factors of each grid, or N by N [of the effort]", &s->factors,
          1, 256, false },
        { OPT_INT, 0, "sweeps", "N",
          "refine codes and scales N times at most [of the effort]", &s->sweeps,
          0, 1000, false },
        { OPT_FLAG, 0, "positive", NULL, "no negative scales", &s->positive, 0,
          0, false },
        { OPT_FLOAT, 0, "alpha", "X",
          "how far the target follows the drift of the input [0.75]",
          &s->module.alpha, 0, 1, false },
        { OPT_FLOAT, 0, "beta", "X",
          "how far it follows the output that is wanted [0.75]",
          &s->module.beta, 0, 1, false },
        { OPT_FLOAT, 0, "damping", "X",
          "added to the diagonal, of its mean [0.01]", &s->module.damping, 1e-9,
          1, false },
        { OPT_FLOAT, 0, "prior", "K",
          "take hessians as if of K tokens more for each input, even ones [0]",
          &s->module.prior, 0, 1000, false },
        { OPT_FLAG, 0, "strict", NULL,
          "a hessian that cannot be factored is an error", &s->strict, 0, 0,
          true },
        { OPT_STR, 0, "report", "FILE", "write a line of JSON per module",
          &s->report, 0, 0, true },
        GPU_OPTIONS(&s->device),
        TOOL_COMMON(&s->tool),
        TOOL_STREAM(&s->tool),
        TOOL_END
    };
    int i;

    s->order = ORDER_ACTIVATION;
    s->sweeps = -1;
    s->module.damping = 0.01;
    s->module.alpha = s->module.beta = 0.75;
    i = opt_parse(argc, argv, "[option...] [file] > codes",
                  "Choose the 4-bit codes of weights on grids that are given.",
                  table);
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
