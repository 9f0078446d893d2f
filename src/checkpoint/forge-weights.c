/* forge-weights - the tensors of a checkpoint as a stream.
 *
 * Linears that can be quantized become `weight` frames, everything else
 * `tensor` frames, in the order of the files.  See forge-weights(1). */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "checkpoint/expertmap.h"
#include "checkpoint/join.h"
#include "checkpoint/made.h"
#include "common/cli/tool.h"

struct settings {
    struct tool tool;
    int64_t layer, share, shares;
    int rest, dequantize, join, linears, others;
    const char *expert_map;
    int mode; /* enum expert_mode */
    struct opt_list match, exclude, modules, skip;
    const char *model, *input, *loans;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_INT, 'l', "layer", "I", "only layer I, counted from 0", &s->layer,
          0, 1e6, false },
        { OPT_FLAG, 0, "rest", NULL, "only tensors outside the layers",
          &s->rest, 0, 0, false },
        { OPT_LIST, 'm', "match", "GLOB",
          "only tensors whose name or module path matches; may be repeated",
          &s->match, 0, 0, false },
        { OPT_LIST, 'x', "exclude", "GLOB",
          "no tensors whose name or module path matches; may be repeated",
          &s->exclude, 0, 0, false },
        { OPT_INT, 0, "share", "K",
          "only the experts of share K, counted from 0", &s->share, 0, 1 << 20,
          true },
        { OPT_INT, 0, "shares", "N", "... of N shares [all tensors]",
          &s->shares, 1, 1 << 20, true },
        { OPT_FLAG, 0, "linears", NULL, "only linears that are to be quantized",
          &s->linears, 0, 0, false },
        { OPT_FLAG, 0, "others", NULL, "only tensors that --linears leaves out",
          &s->others, 0, 0, false },
        { OPT_LIST, 0, "modules", "GLOB",
          "quantize only linears whose path matches; may be repeated [all but "
          "kv_b_proj]",
          &s->modules, 0, 0, false },
        { OPT_LIST, 0, "skip", "GLOB",
          "leave linears as they are whose path matches; may be repeated",
          &s->skip, 0, 0, false },
        { OPT_FLAG, 0, "dequantize", NULL,
          "4-bit linears as float32 weights, not as codes", &s->dequantize, 0,
          0, false },
        { OPT_STR, 0, "expert-map", "FILE",
          "leave out experts by the map of forge-prune in FILE", &s->expert_map,
          0, 0, OPT_FILE },
        { OPT_CHOICE, 0, "mode", EXPERT_MODES,
          "with --expert-map, routers: cut to the kept experts, or whole "
          "[prune]",
          &s->mode, 0, 0, false },
        { OPT_FLAG, 0, "join", NULL,
          "filter a stream: behind each Hessian write the weights of its "
          "modules",
          &s->join, 0, 0, false },
        LOANS_OPTION(&s->loans),
        TOOL_COMMON(&s->tool),
        TOOL_STREAM(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] MODEL [FILE] > weights",
                      "Write the tensors of a checkpoint as a stream.", table);

    if (argc - i < 1 || argc - i > 1 + s->join)
        die(E_USAGE, "wants one operand, the model's directory%s (try --help)",
            s->join ? ", and at most one FILE" : "");
    if (s->share >= (s->shares ? s->shares : 1))
        die(E_USAGE, "--share counts from 0 and is below --shares");
    if (s->tool.expect_key && !s->join)
        die(E_USAGE, "--expect-key goes with --join");
    if (s->loans && !s->join)
        die(E_USAGE, "--loans goes with --join");
    s->model = argv[i];
    s->input = s->join ? argv[i + 1] : NULL;
    tool_apply(&s->tool);
}

static struct weights_choice choice(const struct settings *s)
{
    return (struct weights_choice){
        .layer = s->layer,
        .rest = s->rest,
        .share = s->share,
        .shares = s->shares,
        .match = s->match.item,
        .n_match = s->match.count,
        .exclude = s->exclude.item,
        .n_exclude = s->exclude.count,
        .dequantize = s->dequantize || s->join,
        .linears = s->linears,
        .others = s->others,
        .quantized = { s->modules.item, s->modules.count, s->skip.item,
                       s->skip.count },
    };
}

static int prune(const struct settings *s, struct checkpoint *c,
                 struct model_config *config, struct expert_map *map,
                 struct err *e)
{
    if (!s->expert_map)
        return 0;
    if (expert_map_read(map, s->expert_map, e))
        return e->code;
    return checkpoint_prune(c, map, config, (enum expert_mode)s->mode, e);
}

/* *text = what HEAD says of the model, and of codes that are written, how they were made;
 * free() it. */
static int head_facts(const struct weights_plan *p, char **text, struct err *e)
{
    char *made = NULL;
    bool codes = false;
    int n;

    for (size_t i = 0; i < p->count && !p->dequantize; i++)
        codes |= p->item[i].kind == WEIGHTS_PACKED;
    if (codes && made_facts(p->c, &made, e))
        return e->code;
    n = asprintf(text,
                 "\"model\":{\"tensors\":%zu,\"fingerprint\":\"xxh3:%016llx\"}"
                 "%s%s",
                 checkpoint_count(p->c),
                 (unsigned long long)checkpoint_fingerprint(p->c),
                 made ? ",\"made\":" : "", made ? made : "");
    free(made);
    return n < 0 ? err_set(e, E_TEMP, "HEAD: out of memory") : 0;
}

static int write_all(struct weights_plan *p, struct stream_writer *w,
                     struct progress *prog, struct err *e)
{
    int r = 0;

    for (size_t i = 0; i < p->count && !r; i++) {
        uint64_t bytes;

        r = weights_write(p, i, w, &bytes, e);
        if (!r)
            progress_step(prog, p->item[i].t->name, bytes);
    }
    return r;
}

static int join(const struct settings *s, const struct weights_choice *ch,
                struct weights_plan *p, struct stream_writer *w,
                struct progress *prog, struct err *e)
{
    struct stream_expect expect = { .key = s->tool.expect_key, .loans = true };
    struct stream_reader *in;
    struct ledger *l;
    int r;

    prog->total = 0;
    if (ledger_open(&l, s->loans, e) < 0 ||
        stream_open(&in, s->input, &expect, e) < 0)
        return e->code;
    stream_tie(in, w);
    r = join_weights(p, ch, l, in, w, prog, e);
    stream_close(in);
    ledger_close(l);
    return r;
}

static void finish(struct stream_writer *w, struct progress *prog,
                   const struct weights_plan *p)
{
    char extra[80];

    snprintf(extra, sizeof(extra), "%zu rotary table%s left out", p->dropped,
             p->dropped == 1 ? "" : "s");
    tool_finish(w, prog, p->dropped ? extra : NULL);
}

int main(int argc, char **argv)
{
    struct settings s = { .layer = -1 };
    struct weights_choice ch;
    struct model_config config;
    struct expert_map map = { 0 };
    struct weights_plan plan;
    struct stream_output out = { 0 };
    struct stream_writer *w;
    struct checkpoint *c;
    struct progress prog;
    char *facts;
    struct err e;

    base_init(argv[0]);
    parse(&s, argc, argv);
    ch = choice(&s);
    if (model_config_read(&config, s.model, &e) ||
        checkpoint_open(&c, s.model, &e) || prune(&s, c, &config, &map, &e))
        die_err(&e);
    module_choice_apply(&ch.quantized, &config);
    if (weights_plan(&plan, c, &config, &ch, &e) ||
        head_facts(&plan, &facts, &e))
        die_err(&e);
    out.path = s.tool.output;
    out.key = s.tool.key;
    out.facts = facts;
    if (stream_create(&w, &out, &e))
        die_err(&e);
    free(facts);
    progress_start(&prog, s.tool.progress, "tensors", plan.count);
    if (s.join ? join(&s, &ch, &plan, w, &prog, &e) :
                 write_all(&plan, w, &prog, &e))
        tool_fail(w, &e);
    finish(w, &prog, &plan);
    weights_release(&plan);
    checkpoint_close(c);
    expert_map_release(&map);
    model_config_release(&config);
    return 0;
}
