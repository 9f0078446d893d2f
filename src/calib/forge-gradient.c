/* forge-gradient - run a model forward and backward on sequences, and write the
 * gradients of the loss with respect to the outputs of its linears.  See
 * forge-gradient(1). */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arch/device_bytes.h"
#include "arch/lacks.h"
#include "calib/gradient.h"
#include "common/cli/tool.h"
#include "common/math/rounded.h"
#include "device/device.h"

enum { DTYPE_BF16, DTYPE_F32 };

struct settings {
    struct tool tool;
    struct device_choice device;
    int64_t tokens;
    int dtype;
    const char *model, *input, *weights, *loans;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_INT, 0, "tokens", "N",
          "use the first batches of sequences with N tokens; 0: all [16384]",
          &s->tokens, 0, INT_MAX, false },
        { OPT_STR, 0, "weights", "FILE",
          "also write weights of all tokens, N at a time: |g|^2 of each linear",
          &s->weights, 0, 0, OPT_FILE },
        { OPT_CHOICE, 0, "dtype", "bf16|f32",
          "type of the forward pass, and of the operands of products [bf16]",
          &s->dtype, 0, 0, false },
        DEVICE_OPTIONS(&s->device),
        LOANS_OPTION(&s->loans),
        TOOL_COMMON(&s->tool),
        TOOL_STREAM(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] MODEL [FILE] > gradients",
                      "Run a model forward and backward on sequences, and "
                      "write the gradients of the outputs of its linears.",
                      table);

    if (argc - i < 1 || argc - i > 2)
        die(E_USAGE, "want MODEL and at most one FILE (try --help)");
    s->model = argv[i];
    s->input = argv[i + 1];
    tool_apply(&s->tool);
}

static int run(struct settings *s, struct gradient *g,
               struct stream_reader **in, struct err *e)
{
    struct stream_expect expect = { .key = s->tool.expect_key };
    const char *lacks;

    if (ledger_open(&g->ledger, s->loans, e) < 0 ||
        model_open(&g->m, s->model, s->dtype == DTYPE_BF16 ? DT_BF16 : DT_F32,
                   e) < 0 ||
        stream_open(in, s->input, &expect, e) < 0 ||
        batch_reader_open(&g->batches, *in, g->m, -1, NULL, g->out, e) < 0)
        return e->code;
    if ((lacks = model_gradient_lacks(model_config(g->m), 0)))
        return err_set(e, E_CONFIG,
                       "%s has %s: its gradients are not supported",
                       model_config(g->m)->family->model_type, lacks);
    return gradient_run(g, e);
}

int main(int argc, char **argv)
{
    struct settings s = { .tokens = GRADIENT_TOKENS };
    struct progress progress = { 0 };
    struct gradient g = { .progress = &progress };
    struct stream_reader *in = NULL;
    struct err e;

    parse(&s, argc, argv);
    rounded_set(s.dtype == DTYPE_BF16);
    device_begin(&s.device);
    g.device = &s.device;
    g.tokens = s.tokens;
    g.dir = tool_temporary_dir(&s.tool);
    progress_start(&progress, s.tool.progress, "batches", 0);
    if (stream_create(
            &g.out,
            &(struct stream_output){ .path = s.tool.output, .key = s.tool.key },
            &e) < 0)
        die_err(&e);
    if ((s.weights && stream_create(&g.weights,
                                    &(struct stream_output){
                                        .path = s.weights, .key = s.tool.key },
                                    &e) < 0) ||
        run(&s, &g, &in, &e) < 0 ||
        (g.weights && stream_finish(g.weights, &e) < 0))
        tool_fail(g.out, &e);
    tool_finish(g.out, &progress, NULL);
    close(STDOUT_FILENO); /* the reader returns the last leases at the end */
    ledger_close(g.ledger);
    batch_reader_close(g.batches);
    stream_close(in);
    model_close(g.m);
    return 0;
}
