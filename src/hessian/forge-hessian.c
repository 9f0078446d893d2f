/* forge-hessian - the Hessians of calibration inputs, and the mean of several.
 *
 * Reads `activation` frames and writes one `hessian` frame for each of their
 * names; `hessian` frames are merged by name.  See forge-hessian(1). */
#include <unistd.h>

#include "common/cli/tool.h"
#include "device/device.h"
#include "device/ledger.h"
#include "hessian/hessian_table.h"
#include "hessian/hessian_inputs.h"
#include "hessian/token_weights.h"

struct settings {
    struct tool tool;
    int dtype; /* index into the words of --dtype */
    struct device_choice device;
    const char *loans, *weights;
    int64_t block, max_tokens, skip, blend, parts, share, shares, piece, pieces;
    const char *rows;
    struct opt_list prior;
    int partial;
};

static int parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_CHOICE, 0, "dtype", "auto|bf16|f32",
          "precision of the products: auto is bf16 for bf16 input [auto]",
          &s->dtype, 0, 0, false },
        { OPT_INT, 0, "block", "G",
          "only diagonal blocks of G inputs, 0 = all [0]", &s->block, 0,
          1 << 20, false },
        { OPT_INT, 0, "max-tokens", "N",
          "use the first N tokens of each input, 0 = all [0]", &s->max_tokens,
          0, 9e15, false },
        { OPT_INT, 0, "skip-tokens", "N",
          "leave out the first N tokens of each sequence, but of experts' "
          "inputs [0]",
          &s->skip, 0, 1 << 20, false },
        { OPT_INT, 0, "blend", "K",
          "experts: blend their Hessians with the layer's, as K tokens for "
          "each input [0]",
          &s->blend, 0, 1000000, false },
        { OPT_LIST, 0, "blend-with", "FILE",
          "... which is merged from the moments in FILE; may be repeated",
          &s->prior, 0, 0, true },
        { OPT_STR, 0, "weights", "FILE",
          "a stream of weights of tokens, for each input [all alike]",
          &s->weights, 0, 0, OPT_FILE },
        { OPT_FLAG, 0, "partial", NULL,
          "part of the tokens, to be merged: leave experts' activations as "
          "they are",
          &s->partial, 0, 0, true },
        { OPT_INT, 0, "parts", "N",
          "sum every N-th sequence apart, then merge these N sums [1]",
          &s->parts, 1, 1 << 20, true },
        { OPT_INT, 0, "share", "K",
          "write only what share K of the experts needs, counted from 0",
          &s->share, 0, 1 << 20, true },
        { OPT_INT, 0, "shares", "N", "... of N shares [1]", &s->shares, 1,
          1 << 20, true },
        { OPT_STR, 0, "rows", "NAMES",
          "of other linears: write only what these need, or some of their "
          "rows: "
          "MODULE.rows-FIRST-END-of-ROWS, separated by commas [all]",
          &s->rows, 0, 0, true },
        { OPT_INT, 0, "pieces", "N",
          "write moments of inputs that are no experts' in N frames each [1]",
          &s->pieces, 1, 1 << 20, true },
        { OPT_INT, 0, "piece", "K",
          "merge only number K of these, counted from 0 [all]", &s->piece, 0,
          1 << 20, true },
        DEVICE_OPTIONS(&s->device),
        LOANS_OPTION(&s->loans),
        TOOL_COMMON(&s->tool),
        TOOL_STREAM(&s->tool),
        TOOL_END
    };
    int i = opt_parse(argc, argv, "[option...] [file...] > hessians",
                      "Accumulate the Hessians of activations, or merge "
                      "Hessians.",
                      table);

    if (s->share >= (s->shares ? s->shares : 1))
        die(E_USAGE, "--share counts from 0 and is below --shares");
    if (s->parts > 1 && (s->partial || s->max_tokens || s->shares || s->rows))
        die(E_USAGE, "--parts does not go with --partial, --max-tokens, "
                     "--shares and --rows");
    if (s->partial && (s->max_tokens || s->shares || s->rows))
        die(E_USAGE, "--partial leaves --max-tokens, --shares and --rows to "
                     "who merges the parts");
    if (s->skip && s->max_tokens)
        die(E_USAGE, "--skip-tokens does not go with --max-tokens");
    if (s->piece >= 0 && s->piece >= s->pieces)
        die(E_USAGE, "--piece counts from 0 and is below --pieces");
    if (s->pieces > 1 && (s->block || s->shares || s->rows))
        die(E_USAGE, "--pieces does not go with --block, --shares and --rows");
    if (s->piece >= 0 && (s->partial || s->prior.count))
        die(E_USAGE, "--piece does not go with --partial and --blend-with");
    if (s->partial || s->piece >= 0) /* so is this, which experts' get */
        s->blend = 0;
    tool_apply(&s->tool);
    return i;
}

static int open_all(struct hessian_inputs *r, const struct settings *s,
                    char **path, int n, struct err *e)
{
    static const enum dtype dtypes[] = { DT_NONE, DT_BF16, DT_F32 };
    struct stream_output out = { .path = s->tool.output, .key = s->tool.key };
    int rc;

    r->params =
        (struct hessian_set_params){ .dtype = dtypes[s->dtype],
                                     .block = (uint64_t)s->block,
                                     .blend = (double)s->blend,
                                     .max_tokens = (uint64_t)s->max_tokens,
                                     .skip = (uint64_t)s->skip,
                                     .partial = s->partial,
                                     .parts = s->parts,
                                     .piece = s->piece,
                                     .pieces = s->pieces,
                                     .share = s->share,
                                     .shares = s->shares,
                                     .rows = s->rows };
    if ((rc = ledger_open(&r->ledger, s->loans, e)) < 0 ||
        (rc = device_open(&s->device, &hessian_plugin, e)) < 0 ||
        (rc = token_weights_open(&r->params.weights, s->weights, NULL, e)) <
            0 ||
        (rc = ledger_reads(r->ledger, LEDGER_ACTIVATIONS, e)) < 0 ||
        (rc = hessian_inputs_open(r, path, n, s->tool.expect_key, e)) < 0 ||
        (s->prior.count &&
         (rc = hessian_inputs_prior(r, (char **)s->prior.item, s->prior.count,
                                    s->tool.expect_key, e)) < 0))
        return rc;
    rc = stream_create(&r->out, &out, e);
    return rc < 0 ?
               rc :
               stream_inherit(r->out, token_weights_head(r->params.weights), e);
}

int main(int argc, char **argv)
{
    struct settings s = { .piece = -1 };
    struct hessian_inputs r = { .n_in = 0 };
    struct err e;
    int first = parse(&s, argc, argv);

    if (open_all(&r, &s, argv + first, argc - first, &e) < 0)
        tool_fail(r.out, &e);
    progress_start(&r.progress, s.tool.progress, "tensors", 0);
    device_prepare(false);
    if (hessian_inputs_run(&r, &e) < 0)
        tool_fail(r.out, &e);
    tool_finish(r.out, &r.progress, NULL);
    close(STDOUT_FILENO); /* the solver returns its last leases at the end */
    hessian_inputs_close(&r);
    return 0;
}
