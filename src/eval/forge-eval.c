/* forge-eval - compare a checkpoint's predictions, or its last hidden states,
 * with the original's.
 *
 * Reads tokens; prints the perplexity of both, KL divergence and top-1
 * agreement, or how near the states are, as a table or as one JSON object.  See
 * forge-eval(1). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cli/tool.h"
#include "device/device.h"
#include "eval/eval.h"
#include "eval/report.h"
#include "model/model.h"
#include "work/textnote.h"

enum { DTYPE_F32, DTYPE_BF16 };

struct settings {
    struct tool tool;
    int json, by_layer, states, dtype;
    double max_ppl_ratio; /* 0: no limit */
    const char *tmp, *tokens, *report;
    struct report_subject subject;
    struct text_note text;
    struct device_choice device;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_FLAG, 0, "json", NULL,
          "print a JSON object; with --by-layer one a line", &s->json, 0, 0,
          true },
        { OPT_OUTPUT, 0, "report", "FILE", "write the JSON to FILE, too",
          &s->report, 0, 0, true },
        { OPT_STR, 0, "text-name", "NAME", "what the JSON calls the text",
          &s->subject.text, 0, 0, true },
        { OPT_FLAG, 0, "by-layer", NULL,
          "for each layer: a model of OTHER's layers up to it, then ORIGINAL's",
          &s->by_layer, 0, 0, false },
        { OPT_FLAG, 0, "states", NULL,
          "compare the last hidden states, also where there are predictions",
          &s->states, 0, 0, false },
        { OPT_FLOAT, 0, "max-ppl-ratio", "X",
          "exit 1 if OTHER's perplexity is over X times ORIGINAL's",
          &s->max_ppl_ratio, 1e-6, 1e6, true },
        { OPT_CHOICE, 0, "dtype", "f32|bf16", "type to compute in [f32]",
          &s->dtype, 0, 0, false },
        GPU_OPTIONS(&s->device),
        { OPT_STR, 0, "tmp", "DIR",
          "directory for temporary files [$TMPDIR or /tmp]", &s->tmp, 0, 0,
          true },
        { OPT_STR, 0, "expect-key", "KEY",
          "refuse an input with another settings key", &s->tool.expect_key, 0,
          0, true },
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] ORIGINAL OTHER [FILE]",
                      "Compare a checkpoint with the original on tokens: "
                      "perplexity, KL divergence, top-1.",
                      table);

    if (argc - i < 2 || argc - i > 3)
        die(E_USAGE, "want ORIGINAL OTHER [FILE] (try --help)");
    if (s->states && s->max_ppl_ratio > 0)
        die(E_USAGE, "--states compares no predictions: no --max-ppl-ratio");
    s->subject.original = argv[i];
    s->subject.other = argv[i + 1];
    s->subject.dtype = s->dtype == DTYPE_BF16 ? "bf16" : "f32";
    s->tokens = i + 2 < argc ? argv[i + 2] : NULL;
    tool_apply(&s->tool);
}

/* Read the tokens, and what is known of their text. */
static int read_tokens(struct corpus *c, struct settings *s,
                       const struct eval *v, struct err *e)
{
    const struct stream_expect expect = { .key = s->tool.expect_key };
    struct stream_reader *in;
    int rc;

    if (stream_open(&in, s->tokens, &expect, e) < 0)
        return e->code;
    rc = corpus_read(c, in, eval_vocab(v), !eval_states(v), e);
    if (!rc)
        rc = text_note_head(&s->text, stream_head(in), e);
    if (!rc) {
        s->subject.sha256 = s->text.sha256;
        s->subject.sequences = c->count;
        s->subject.seqlen = c->longest;
    }
    stream_close(in);
    return rc;
}

/* The last line: how much was scored; for experts pruned by a map, how often
 * the router's choices were remapped. */
static void finish(struct progress *p, size_t sequences,
                   const struct remap_counts *c)
{
    char text[200];
    int n = snprintf(text, sizeof(text), "%zu sequence%s scored", sequences,
                     sequences == 1 ? "" : "s");

    if (c)
        snprintf(text + n, sizeof(text) - (size_t)n,
                 "; %" PRIu64 " choices of pruned experts in %" PRIu64
                 " tokens of all layers, %" PRIu64 " of which lost all",
                 c->pruned, c->tokens, c->lost);
    progress_finish(p, text);
}

/* Room for the results at each token and, of predictions, for scratch memory
 * kl[c->positions].  free() them after an error, too. */
static int make_room(struct comparison *out, double **kl, const struct eval *v,
                     const struct corpus *c, struct err *e)
{
    size_t n = (size_t)eval_variants(v), each = eval_compared(v, c);

    if (eval_states(v)) {
        out->states = mem_zero(n, each * sizeof(*out->states), "scores", e);
        return out->states ? 0 : e->code;
    }
    out->scores = mem_zero(n, each * sizeof(*out->scores), "scores", e);
    if (out->scores)
        *kl = mem_zero(each, sizeof(**kl), "scores", e);
    return *kl ? 0 : e->code;
}

/* Run the comparison; report[variant]: the result of each model. */
static int compare(struct eval *v, const struct corpus *c,
                   const struct settings *s, struct report *report,
                   struct err *e)
{
    size_t n = (size_t)eval_variants(v), each = eval_compared(v, c);
    struct comparison out = { NULL, NULL };
    struct progress p;
    double *kl = NULL;
    int rc = make_room(&out, &kl, v, c, e);

    if (!rc) {
        /* a pass: one sequence through one layer */
        progress_start(&p, s->tool.progress, "passes",
                       eval_passes(v) * c->count);
        rc = eval_run(v, c, &out, &p, e);
    }
    for (size_t i = 0; !rc && i < n; i++) {
        report[i].of = &s->subject;
        report[i].layer = s->by_layer ? (int64_t)i : -1;
        if (out.states)
            report[i].s =
                similarity_summarize(out.states + i * each, c->start, c->count);
        else
            report[i].r = score_summarize(out.scores + i * each, each, kl);
    }
    if (!rc)
        finish(&p, c->count, eval_remapped(v));
    free(out.scores);
    free(out.states);
    free(kl);
    return rc;
}

static int print(const struct settings *s, const struct report *report,
                 size_t n, struct err *e)
{
    if (s->json)
        return report_json(stdout, report, n, e);
    return s->by_layer ? report_rows(stdout, report, n, e) :
                         report_table(stdout, report, e);
}

/* Refuse what needs predictions, before any work. */
static int check_head(struct settings *s, const struct eval *v, struct err *e)
{
    s->subject.states = eval_states(v);
    return s->subject.states && s->max_ppl_ratio > 0 ?
               err_set(e, E_USAGE,
                       "--max-ppl-ratio: the model has no output head, so no "
                       "predictions to compare") :
               0;
}

static bool too_far(const struct settings *s, const struct score_result *r)
{
    double ratio = r->all.ppl / r->all.ppl_original;

    if (s->max_ppl_ratio == 0 || ratio <= s->max_ppl_ratio)
        return false;
    warning("perplexity is %.6g times the original's, above --max-ppl-ratio "
            "%.6g",
            ratio, s->max_ppl_ratio);
    return true;
}

int main(int argc, char **argv)
{
    struct settings s = { .dtype = DTYPE_F32 };
    struct corpus c;
    struct report *report;
    struct eval *v = NULL;
    struct err e;
    size_t n;

    parse(&s, argc, argv);
    const struct eval_params p = {
        .original = s.subject.original,
        .other = s.subject.other,
        .dtype = s.dtype == DTYPE_BF16 ? DT_BF16 : DT_F32,
        .tmp = s.tmp ? s.tmp : tool_temporary_dir(&s.tool),
        .by_layer = s.by_layer,
        .states = s.states,
    };
    if (device_open(&s.device, &forward_plugin, &e) < 0 ||
        eval_open(&v, &p, &e) < 0 || check_head(&s, v, &e) < 0 ||
        read_tokens(&c, &s, v, &e) < 0)
        die_err(&e);
    n = (size_t)eval_variants(v);
    report = mem_zero(n, sizeof(*report), "report", &e);
    if (!report || compare(v, &c, &s, report, &e) < 0 ||
        (s.report && report_file(s.report, report, n, &e) < 0) ||
        print(&s, report, n, &e) < 0)
        die_err(&e);
    eval_close(v);
    corpus_release(&c);
    bool far = too_far(&s, &report[n - 1].r);
    free(report);
    return far ? EXIT_NO : 0;
}
