/* forge-tune - tune the codes of a whole model by the KL divergence of what it
 * predicts from what the original does.  See forge-tune(1). */
#include <limits.h>
#include <stdio.h>

#include "arch/device_bytes.h"
#include "common/cli/tool.h"
#include "common/math/rounded.h"
#include "device/device.h"
#include "model/backward.h"
#include "tune/tune.h"

enum { DTYPE_BF16, DTYPE_F32 };

struct settings {
    struct tool tool;
    struct opt_list tokens;
    const char *tokens_key, *gradients, *model;
    char *const *input; /* [inputs] */
    int inputs, dtype;
    struct device_choice device;
    int64_t steps, batch, seed;
    double rate;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_LIST, 0, "tokens", "FILE",
          "sequences to tune on (forge-tokens); may be given several times",
          &s->tokens, 0, 0, OPT_FILE },
        { OPT_INT, 0, "steps", "N", "steps [512]", &s->steps, 1, INT_MAX,
          false },
        { OPT_INT, 0, "batch", "N", "sequences of a step [16]", &s->batch, 1,
          BATCH_SEQUENCES, false },
        { OPT_FLOAT, 0, "rate", "X",
          "how far a step moves, about, in steps of the grid [1 / hidden "
          "size, in a mixture 2/3 of that]",
          &s->rate, 1e-6, 1, false },
        { OPT_INT, 0, "seed", "N", "seed of the order of sequences [0]",
          &s->seed, 0, 9e15, false },
        { OPT_STR, 0, "tokens-key", "KEY",
          "refuse tokens with another settings key", &s->tokens_key, 0, 0,
          true },
        { OPT_CHOICE, 0, "dtype", "bf16|f32",
          "type that products' operands are rounded to [bf16]", &s->dtype, 0, 0,
          false },
        { OPT_STR, 0, "gradients", "FILE",
          "also write the gradients of the first step, of all weights",
          &s->gradients, 0, 0, true },
        DEVICE_OPTIONS(&s->device),
        TOOL_COMMON(&s->tool),
        TOOL_STREAM(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(
        argc, argv, "[option...] --tokens FILE MODEL [FILE...] > codes",
        "Tune the codes of a whole model, by the KL divergence of "
        "what it predicts from what the original does.",
        table);

    if (argc - i < 1 || !s->tokens.count)
        die(E_USAGE, "want --tokens and MODEL (try --help)");
    s->model = argv[i];
    s->input = argv + i + 1;
    s->inputs = argc - i - 1;
    tool_apply(&s->tool);
    rounded_set(s->dtype == DTYPE_BF16);
}

/* Codes of one input; path NULL: standard input. */
static int read_codes(const struct settings *s, struct tune *t,
                      const char *path, struct stream_writer *out,
                      struct err *e)
{
    struct stream_expect expect = { .key = s->tool.expect_key };
    struct stream_reader *in = NULL;
    int rc = stream_open(&in, path, &expect, e);

    if (rc >= 0)
        rc = tuned_read(t->codes, in, e);
    if (rc >= 0)
        rc = stream_inherit(out, stream_head(in), e);
    stream_close(in);
    return rc;
}

/* Run the model on a device, if there is one with the memory, instead of on the host in
 * f32. */
static int use_device(const struct settings *s, struct tune *t, struct err *e)
{
    enum dtype there = s->dtype == DTYPE_BF16 ? DT_BF16 : DT_F32;
    double rows = (double)s->batch * (double)t->sequences->longest;

    if (device_open(&s->device, &forward_plugin, e) < 0)
        return e->code;
    if (!device_gpu())
        return 0;
    model_close(t->m);
    t->m = NULL;
    if (model_open(&t->m, s->model, there, e) < 0 ||
        backward_use_device(
            t->m, "tuning takes",
            tune_device_bytes(model_config(t->m), dtype_bits(there) / 8, rows),
            e) < 0)
        return e->code;
    if (model_on_device(t->m))
        return 0;
    model_close(t->m);
    t->m = NULL;
    return model_open(&t->m, s->model, DT_F32, e);
}

static void check_reach(const struct tune *t)
{
    double reach = tune_reach(t->rate, t->steps);

    if (reach < TUNE_REACH * tuned_near(t->rate))
        warning("the numbers behind codes move by %.2g steps of the grid at "
                "most, so "
                "hardly a code will change: more --steps, or a higher --rate",
                reach);
}

/* All that can be refused is read before the first pass. */
static int open_all(const struct settings *s, struct tune *t,
                    struct stream_writer *out, struct err *e)
{
    if (model_open(&t->m, s->model, DT_F32, e) < 0)
        return e->code;
    for (int i = 0; i < s->tokens.count; i++)
        if (tune_tokens_read(t->sequences, s->tokens.item[i],
                             i ? NULL : s->tokens_key, t->m, out, e) < 0)
            return e->code;
    if (t->rate <= 0)
        t->rate = tune_rate(model_config(t->m));
    if (use_device(s, t, e) < 0 || tuned_open(&t->codes, t->m, e) < 0)
        return e->code;
    for (int i = 0; i < s->inputs || !i; i++)
        if (read_codes(s, t, s->inputs ? s->input[i] : NULL, out, e) < 0)
            return e->code;
    return tuned_check(t->codes, model_config(t->m), e) < 0 ?
               e->code :
               tuned_begin(t->codes, s->model, t->rate, e);
}

static int run(const struct settings *s, struct tune *t,
               struct stream_writer *out, double *moved, struct err *e)
{
    const struct stream_output gradients = { .path = s->gradients };

    if (open_all(s, t, out, e) < 0)
        return e->code;
    check_reach(t);
    if ((s->gradients && stream_create(&t->gradients, &gradients, e) < 0) ||
        tune_run(t, e) < 0 ||
        (t->gradients && stream_finish(t->gradients, e) < 0))
        return e->code;
    return tuned_write(t->codes, out, moved, e);
}

int main(int argc, char **argv)
{
    struct settings s = { .steps = 512, .batch = 16 };
    struct progress progress = { 0 };
    struct tune_tokens tokens = { 0 };
    struct tune t = { .sequences = &tokens, .progress = &progress };
    struct stream_writer *out = NULL;
    char text[96];
    double moved;
    struct err e;

    parse(&s, argc, argv);
    t.steps = s.steps;
    t.batch = s.batch;
    t.rate = s.rate;
    t.seed = (uint64_t)s.seed;
    t.dir = tool_temporary_dir(&s.tool);
    progress_start(&progress, s.tool.progress, "steps", 0);
    if (stream_create(
            &out,
            &(struct stream_output){ .path = s.tool.output, .key = s.tool.key },
            &e) < 0)
        die_err(&e);
    if (run(&s, &t, out, &moved, &e) < 0)
        tool_fail(out, &e);
    snprintf(text, sizeof(text), "KL %.4g -> %.4g, %.1f %% of the codes moved",
             t.kl[0], t.kl[1], 100 * moved);
    tool_finish(out, &progress, text);
    tuned_close(t.codes);
    tune_tokens_release(&tokens);
    model_close(t.m);
    return 0;
}
