/* forge-calib - run a model on calibration sequences and write the inputs of
 * its linears.  See forge-calib(1). */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calib/calib.h"
#include "arch/device_bytes.h"
#include "calib/options.h"
#include "common/io/region.h"
#include "device/device.h"

/* MODEL and FILE, or with --shares the FILEs of all parts. */
static void take_operands(struct calib_options *s, char **operand, int n)
{
    if (n < 1 || (n > 2 && !s->share.shares))
        die(E_USAGE, "want MODEL and at most one FILE (try --help)");
    s->model = operand[0];
    s->input = operand[1];
    s->share.file = (const char *const *)operand + 1;
    s->share.parts = n - 1;
}

static void parse(struct calib_options *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_INT, 'l', "layer", "I", "run this layer only [all]", &s->layer, 0,
          INT_MAX, false },
        { OPT_STR, 'f', "feedback", "FIFO",
          "named pipe where codes come back: run the linears of each point "
          "with them",
          &s->feedback, 0, 0, true },
        { OPT_CHOICE, 0, "propagate", "quantized|both",
          "with --feedback or --until; both: run the original model, too, and "
          "write how its states differ [quantized]",
          &s->propagate, 0, 0, false },
        { OPT_LIST, 'c', "codes", "FILE",
          "run the linears in FILE dequantized from their codes; may be "
          "repeated; %: the layer's number",
          &s->codes, 0, 0, true },
        { OPT_STR, 0, "hidden", "FILE",
          "write the hidden states that leave the layer to FILE; with "
          "--feedback, those of a finished layer now and then, to resume from; "
          "with --until, those at the point",
          &s->hidden, 0, 0, true },
        { OPT_STR, 0, "until", "LAYER.POINT",
          "run up to this point with --codes, write its activations, and end",
          &s->until, 0, 0, true },
        { OPT_INT, 0, "part", "P",
          "run part P of the sequences of tokens, counted from 0",
          &s->part.part, 0, 1 << 20, true },
        { OPT_INT, 0, "parts", "N", "... of N parts; with --feedback all [1]",
          &s->part.parts, 1, 1 << 20, false },
        { OPT_INT, 0, "share", "K",
          "with --feedback: quantize share K of a layer's experts, from 0; "
          "each FILE has the states of a part of the tokens",
          &s->share.share, 0, 1 << 20, true },
        { OPT_INT, 0, "shares", "N", "... of N shares", &s->share.shares, 1,
          1 << 20, true },
        { OPT_LIST, 0, "outputs", "FILE",
          "with --share: write the experts' outputs to FILE; with --until: "
          "take them from FILE, one for each share",
          &s->outputs, 0, 0, true },
        { OPT_STR, 't', "to", "embed|hidden",
          "write no activations, but the embedded tokens, or the hidden states "
          "that leave the layer",
          &s->to, 0, 0, false },
        { OPT_FLAG, 0, "hitmap", NULL,
          "write no activations, but statistics of the routers' choices",
          &s->hitmap, 0, 0, false },
        { OPT_FLAG, 0, "skip-experts", NULL,
          "do not run the experts: quick, approximate, for --hitmap",
          &s->skip_experts, 0, 0, false },
        { OPT_FLAG, 0, "kv-b", NULL,
          "write the inputs of kv_b_proj of latent attention, too", &s->kv_b, 0,
          0, false },
        { OPT_STR, 0, "synthetic", "gaussian[:SEED]",
          "run no model: write normally distributed numbers as activations; "
          "SEED [1]",
          &s->gaussian, 0, 0, false },
        { OPT_INT, 0, "sequences", "N", "with --synthetic: sequences [128]",
          &s->synthetic.sequences, 1, 1000000, false },
        { OPT_INT, 0, "seqlen", "T", "with --synthetic: tokens in each [512]",
          &s->synthetic.seqlen, 1, 1000000, false },
        { OPT_SIZE, 0, "expert-sums", "SIZE",
          "GPU memory for sums of experts' outputs; if all take more, they "
          "are made in parts, by a second run [8GiB]",
          &s->expert_sums, 0, 0, false },
        { OPT_SIZE, 0, "states-memory", "SIZE",
          "memory for states and activations of all tokens, which are in files "
          "where they have more [0]",
          &s->states_memory, 0, 1, true },
        { OPT_CHOICE, 0, "dtype", "bf16|f32", "type to compute in [bf16]",
          &s->dtype, 0, 0, false },
        DEVICE_OPTIONS(&s->device),
        LOANS_OPTION(&s->loans),
        TOOL_COMMON(&s->tool),
        TOOL_STREAM(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] MODEL [FILE] > activations",
                      "Run a model on calibration sequences, and write the "
                      "inputs of its linears.",
                      table);

    /* steps of a run, which --until makes, make what --feedback does */
    if (s->feedback || (s->until && strstr(stream_args, "--propagate=")))
        opt_record("feedback=FIFO");
    else if (s->codes.count && !s->until)
        opt_record("codes=FILE");
    take_operands(s, argv + i, argc - i);
    tool_apply(&s->tool);
}

static int open_model(const struct calib_options *s, struct calib *c,
                      struct err *e)
{
    if (model_open(&c->m, s->model, s->dtype ? DT_F32 : DT_BF16, e) < 0)
        return e->code;
    if (s->kv_b)
        model_list_kv_b(c->m);
    if (s->layer >= model_config(c->m)->n_layers)
        return err_set(e, E_USAGE, "--layer: '%s' has layers 0 to %lld",
                       s->model, (long long)model_config(c->m)->n_layers - 1);
    return 0;
}

static int run(struct calib_options *s, struct calib *c,
               struct stream_reader **in, struct err *e)
{
    struct stream_expect expect = { .key = s->tool.expect_key };

    if (s->gaussian)
        return synthetic_write(&s->synthetic, s->model, c->out, c->progress,
                               e) < 0 ?
                   e->code :
                   calib_finish(c, e);
    if (ledger_open(&c->ledger, s->loans, e) < 0 ||
        calib_codes(c, s->codes.item, s->codes.count, e) < 0 ||
        open_model(s, c, e) < 0 ||
        (s->until &&
         calib_stop_parse(&s->stop, s->until, model_config(c->m), e) < 0))
        return e->code;
    if (s->share.shares)
        return share_run(c, &s->share, e) < 0 ? e->code : calib_finish(c, e);
    if (stream_open(in, s->input, &expect, e) < 0 ||
        batch_reader_open(&c->batches, *in, c->m, s->layer, &s->part, c->out,
                          e) < 0)
        return e->code;
    c->head = stream_head(*in);
    return calib_run(c, e);
}

/* End the process after an error: the tools of the ring must get it first
 * (feedback_abandon()). */
static _Noreturn void leave(const struct calib_options *s, struct calib *c,
                            const struct err *e)
{
    tool_report_error(c->out, e);
    if (s->feedback)
        feedback_abandon(c->feedback, s->feedback);
    _exit(-e->code);
}

int main(int argc, char **argv)
{
    struct calib_options s = { .layer = -1, .expert_sums = EXPERT_SUMS };
    struct progress progress = { 0 };
    struct calib c = { .progress = &progress };
    struct stream_reader *in = NULL;
    struct err e;

    parse(&s, argc, argv);
    if (calib_options_check(&s, &e) < 0 ||
        (s.gaussian && synthetic_parse(&s.synthetic, s.gaussian, &e) < 0))
        leave(&s, &c, &e);
    if (!s.gaussian)
        device_begin(&s.device);
    c.device = &s.device;
    c.output = s.output;
    c.whole = s.layer < 0 && !s.to;
    c.skip_experts = s.skip_experts;
    c.expert_sums = (int64_t)s.expert_sums;
    c.until = s.until ? &s.stop : NULL;
    c.hidden = s.hidden;
    c.reference = s.propagate == 1;
    c.input = s.input;
    c.parts = s.feedback ? s.part.parts : 0;
    c.part = s.part;
    c.outputs = s.outputs;
    c.key = s.tool.key;
    region_keep(s.states_memory);
    c.dir = tool_temporary_dir(&s.tool);
    /* first of all: the pipe's writer may be waiting for its reader */
    if (s.feedback && feedback_open(&c.feedback, s.feedback, s.loans, &e) < 0)
        leave(&s, &c, &e);
    progress_start(&progress, s.tool.progress,
                   s.gaussian ? "tensors" : "sequences", 0);
    if (stream_create(
            &c.out,
            &(struct stream_output){ .path = s.tool.output, .key = s.tool.key },
            &e) < 0 ||
        run(&s, &c, &in, &e) < 0)
        leave(&s, &c, &e);
    progress_finish(&progress, NULL);
    feedback_close(c.feedback);
    batch_reader_close(c.batches);
    stream_close(in);
    quantized_free(c.codes);
    model_close(c.m);
    ledger_close(c.ledger);
    return 0;
}
