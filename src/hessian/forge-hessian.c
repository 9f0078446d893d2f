/* forge-hessian - the Hessians of calibration inputs, and the mean of several.
 *
 * Reads `activation` frames and writes one `hessian` frame for each of their
 * names; `hessian` frames are merged by name.  See forge-hessian(1). */
#include <stdlib.h>
#include <unistd.h>

#include "arch/tensor_name.h"
#include "common/cli/tool.h"
#include "device/device.h"
#include "device/ledger.h"
#include "hessian/hessian_table.h"
#include "hessian/input_batch.h"

struct settings {
    struct tool tool;
    int dtype; /* index into the words of --dtype */
    struct device_choice device;
    const char *loans;
    int64_t block, max_tokens, blend, share, shares;
    int partial;
};

enum input_state { INPUT_ENDED, INPUT_FRESH, INPUT_READING };

struct run {
    struct settings *s;
    struct stream_reader **in;
    struct input_batch **batch; /* [n_in] */
    enum input_state *state;
    int n_in;
    struct stream_writer *out;
    struct hessian_set *all;
    struct ledger *ledger;
    struct progress progress;
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
        { OPT_INT, 0, "blend", "K",
          "experts: blend their Hessians with the layer's, as K tokens for "
          "each input [0]",
          &s->blend, 0, 1000000, false },
        { OPT_FLAG, 0, "partial", NULL,
          "part of the tokens, to be merged: leave experts' activations as "
          "they "
          "are",
          &s->partial, 0, 0, false },
        { OPT_INT, 0, "share", "K",
          "write only what share K of the modules needs, counted from 0",
          &s->share, 0, 1 << 20, false },
        { OPT_INT, 0, "shares", "N", "... of N shares [1]", &s->shares, 1,
          1 << 20, false },
        GPU_OPTIONS(&s->device),
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
    if (s->partial && (s->blend || s->max_tokens || s->shares))
        die(E_USAGE, "--partial leaves --blend, --max-tokens and --shares to "
                     "who merges the parts");
    tool_apply(&s->tool);
    return i;
}

static int open_inputs(struct run *r, char **path, int n, struct err *e)
{
    struct stream_expect expect = { .key = r->s->tool.expect_key,
                                    .loans = r->ledger };
    int rc = 0;

    r->n_in = n ? n : 1;
    r->in = mem_zero((size_t)r->n_in, sizeof(*r->in), "inputs", e);
    r->batch = mem_zero((size_t)r->n_in, sizeof(*r->batch), "inputs", e);
    r->state = mem_zero((size_t)r->n_in, sizeof(*r->state), "inputs", e);
    if (!r->in || !r->batch || !r->state)
        return e->code;
    for (int i = 0; i < r->n_in && rc >= 0; i++) {
        rc = stream_open(&r->in[i], n ? path[i] : NULL, &expect, e);
        r->state[i] = INPUT_FRESH;
    }
    return rc;
}

/* Of another share. */
static bool unwanted(const void *all, const struct frame *f)
{
    return !hessian_set_wants(all, f->name);
}

static int open_all(struct run *r, char **path, int n, struct err *e)
{
    static const enum dtype dtypes[] = { DT_NONE, DT_BF16, DT_F32 };
    const struct settings *s = r->s;
    struct hessian_set_params p = { .dtype = dtypes[s->dtype],
                                    .block = (uint64_t)s->block,
                                    .blend = (double)s->blend,
                                    .max_tokens = (uint64_t)s->max_tokens,
                                    .partial = s->partial,
                                    .share = s->share,
                                    .shares = s->shares };
    struct stream_output out = { .path = s->tool.output, .key = s->tool.key };
    int rc;

    if ((rc = ledger_open(&r->ledger, s->loans, e)) < 0 ||
        (rc = device_open(&s->device, &hessian_plugin, e)) < 0 ||
        (rc = ledger_reads(r->ledger, LEDGER_ACTIVATIONS, e)) < 0 ||
        (rc = open_inputs(r, path, n, e)) < 0)
        return rc;
    p.n_inputs = r->n_in;
    p.ledger = r->ledger;
    if ((rc = hessian_set_open(&r->all, &p, e)) < 0)
        return rc;
    if (stream_create(&r->out, &out, e) < 0)
        return e->code;
    for (int i = 0; i < r->n_in && rc >= 0; i++) {
        if (s->shares)
            stream_leave_out(r->in[i], unwanted, r->all);
        rc = input_batch_open(&r->batch[i], r->all, &p, r->in[i], r->out, e);
    }
    return rc;
}

/* The next frame of input i; *given: see input_batch.h. */
static int next(struct run *r, int i, struct frame *f, bool *given,
                struct err *e)
{
    int rc = input_batch_next(r->batch[i], f, given, e);

    if (rc <= 0 || r->state[i] != INPUT_FRESH)
        return rc;
    r->state[i] = INPUT_READING;
    return stream_inherit(r->out, input_batch_head(r->batch[i]), e) < 0 ?
               e->code :
               rc;
}

/* What is behind a loan is worth nothing when its lender has died: how the input
 * ends says why. */
static int lender_died(struct run *r, int i, struct err *e)
{
    struct frame f;
    bool given;
    int rc;

    while ((rc = input_batch_next(r->batch[i], &f, &given, e)) > 0)
        ;
    return rc < 0 ? rc : err_set(e, E_DATA, "input ends early");
}

static int activation(struct run *r, int i, const struct frame *f, bool given,
                      struct err *e)
{
    struct frame there = *f;
    int rc = 0;

    if (f->loan.lent)
        rc = ledger_map(r->ledger, &f->loan, &there.data, e);
    if (rc >= 0 && !given)
        rc = hessian_set_activation(r->all, &there, e);
    if (f->loan.lent && (rc < 0 || f->last) &&
        !ledger_was_there(r->ledger, LEDGER_ACTIVATIONS))
        return lender_died(r, i, e);
    return rc;
}

/* Input i has given all of this name: emit it when all inputs have, which frees
 * its memory. */
static int complete(struct run *r, const struct frame *f, int i, struct err *e)
{
    return hessian_set_complete(r->all, f->name, i) ?
               hessian_set_emit(r->all, f->name, r->out, e) :
               0;
}

/* The last activation of a name; its companions came before it. */
static bool ends(const struct frame *f)
{
    size_t len;
    enum companion c = companion_of(f->name, &len);

    return f->role == ROLE_ACTIVATION && f->last &&
           (c == COMPANION_NONE || c == COMPANION_GRADIENT);
}

/* Frames of other roles are passed through when there is one input; with several
 * inputs they are dropped. */
static int take(struct run *r, int i, const struct frame *f, bool given,
                struct err *e)
{
    switch (f->role) {
    case ROLE_ACTIVATION:
        return r->s->partial && tensor_name_is_expert(f->name) ?
                   stream_write(r->out, f, e) :
                   activation(r, i, f, given, e);
    case ROLE_HESSIAN: return hessian_set_part(r->all, f, e);
    case ROLE_CROSS: return hessian_set_cross(r->all, f, e);
    case ROLE_HIDDEN:
    case ROLE_ROUTING:
    case ROLE_TOKENS: return 0; /* dropped: no later stage reads them */
    default: return r->n_in > 1 ? 0 : stream_write(r->out, f, e);
    }
}

/* Read input i up to and including the last frame of a name, so that of inputs
 * in the same order only one name at a time is in memory.  Of a single input,
 * Hessians may come again in a further stream. */
static int advance(struct run *r, int i, struct err *e)
{
    struct frame f;
    bool given;
    int rc;

    while ((rc = next(r, i, &f, &given, e)) > 0) {
        progress_step(&r->progress, f.name, f.len);
        if (!hessian_set_wants(r->all, f.name))
            continue;
        rc = take(r, i, &f, given, e);
        if (rc >= 0 && (ends(&f) || (f.role == ROLE_HESSIAN && r->n_in > 1)))
            return complete(r, &f, i, e);
        if (rc < 0)
            return rc;
    }
    r->state[i] = INPUT_ENDED;
    return rc;
}

static int run(struct run *r, struct err *e)
{
    bool more = true;
    int rc;

    while (more) {
        more = false;
        for (int i = 0; i < r->n_in; i++) {
            if (r->state[i] && (rc = advance(r, i, e)) < 0)
                return rc;
            more |= r->state[i] != INPUT_ENDED;
        }
    }
    return hessian_set_emit(r->all, NULL, r->out, e);
}

static void close_all(struct run *r)
{
    for (int i = 0; i < r->n_in; i++) {
        input_batch_close(r->batch[i]);
        stream_close(r->in[i]);
    }
    free(r->in);
    free(r->batch);
    free(r->state);
    hessian_set_close(r->all);
    ledger_close(r->ledger);
}

int main(int argc, char **argv)
{
    struct settings s = { .dtype = 0 };
    struct run r = { .s = &s };
    struct err e;
    int first = parse(&s, argc, argv);

    if (open_all(&r, argv + first, argc - first, &e) < 0)
        tool_fail(r.out, &e);
    progress_start(&r.progress, s.tool.progress, "tensors", 0);
    device_prepare(false);
    if (run(&r, &e) < 0)
        tool_fail(r.out, &e);
    tool_finish(r.out, &r.progress, NULL);
    close_all(&r);
    return 0;
}
