/* stage.c - forge stage NAME [LAYER | LAYER-POINT NUMBER]: one step of
 * pipeline.mk.
 *
 * The current directory is the work directory, whose settings.json is the job.
 * Standard output is the report that forge quantize reads (follow.h), lines of:
 * "begin NAME LAYER"; {...}, forge-solve's report of a module; "error STATUS
 * MESSAGE". */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arch/tensor_name.h"
#include "common/io/file.h"
#include "common/io/json.h"
#include "common/io/stream.h"
#include "common/math/cpu.h"
#include "forge/command.h"
#include "forge/stage_pack.h"
#include "forge/stage_parts.h"
#include "forge/stage_took.h"
#include "forge/stage_tune.h"
#include "forge/variables.h"

/* ---- steps ---- */

static int stage_tokens(struct stage *s, struct err *e)
{
    (void)e;
    command_add(pipes_add(&s->p, "forge-tokens"), "-q", "--sequences",
                number_word(s->counts[1], s->j.sequences), "--seqlen",
                number_word(s->counts[2], s->j.seqlen), "--key", s->j.tkey,
                "-o", stage_path(s->path[0], s->T, "tokens.fts"), s->j.model,
                s->j.text, NULL);
    return 0;
}

/* Whether there are hidden states to resume from, and the codes of all layers
 * before. */
static bool states_usable(const struct stage *s, const char *hidden)
{
    char path[PATH_ROOM];
    struct stream_reader *r;
    struct frame f;
    uint64_t at;
    struct err e;
    int64_t layer = -1;

    if (access(hidden, F_OK) || stream_open(&r, hidden, NULL, &e) < 0)
        return false;
    if (stream_skim(r, &f, &at, &e) > 0)
        layer = tensor_name_layer(f.name);
    stream_close(r);
    for (int64_t i = layer; i-- > 0;)
        if (access(stage_layer_path(path, s->S, "codes", i), F_OK))
            return false;
    return layer >= 0;
}

/* The tokens in parts, one after the other, and sums of each. */
static void add_parts(struct stage *s, struct command *c)
{
    if (s->j.parts > 1)
        command_add(c, "--parts", number_word(s->counts[1], s->j.parts), NULL);
}

/* What the next layer would be made of. */
static void states_tidy(struct stage *s)
{
    unlink(stage_path(s->path[0], s->S, "hidden.fts"));
    stage_parts_tidy(s);
}

/* ... may go while the checkpoint is written and compared. */
static void ring_done(void *ctx)
{
    states_tidy(ctx);
}

/* The whole model with feedback: each linear is quantized on the activations of
 * the model quantized before it; the pipe's output is forge-calib's feedback.
 * Resumes a killed run from its last hidden states, with the codes of the
 * layers from there on. */
static int stage_loop(struct stage *s, struct err *e)
{
    const char *hidden = stage_path(s->path[3], s->S, "hidden.fts");
    bool resume = states_usable(s, hidden);
    struct command *c = stage_calib(s);

    if (stage_ring(s, e) < 0 || pipes_along(&s->p, s->along, e) < 0)
        return e->code;
    stage_lend(s, c);
    if (s->j.gpu_states)
        command_add(c, "--gpu-memory",
                    stage_text(s, "%" PRIu64, s->j.gpu_states), NULL);
    if (s->j.states_memory)
        command_add(c, "--states-memory",
                    stage_text(s, "%" PRIu64, s->j.states_memory), NULL);
    command_add(c, "--feedback", "-", "--codes",
                stage_path(s->path[4], s->S, "codes-%.fts"), "--expect-key",
                resume ? s->j.skey : s->j.tkey, "--key", s->j.skey,
                "--propagate", s->propagate, "--hidden", hidden, NULL);
    add_parts(s, c);
    command_add(c, s->j.model,
                resume ? hidden : stage_path(s->path[5], s->T, "tokens.fts"),
                NULL);
    c = stage_hessian(s);
    stage_weigh(s, c);
    add_parts(s, c);
    stage_lend(s, c);
    if (stage_ring_end(s, NULL, e) < 0)
        return e->code;
    s->p.ring_done = ring_done;
    s->p.ctx = s;
    if (!s->j.tune)
        stage_add_pack(s);
    return 0;
}

static void loop_tidy(struct stage *s)
{
    states_tidy(s);
    if (!s->j.tune)
        stage_made(s);
}

/* F of the outputs (gptq/solve/fisher_descent.h) and weights of the tokens, of the
 * original model.  The weights are whole before F is. */
static int stage_fisher(struct stage *s, struct err *e)
{
    struct command *gradient, *hessian;

    if (stage_gradients(s, &gradient, &hessian, e) < 0)
        return e->code;
    stage_weigh(s, gradient);
    command_add(gradient, "--tokens",
                number_word(s->counts[1], effort_fisher_tokens(s->j.effort)),
                "--expect-key", s->j.tkey, "--key", s->j.ckey, s->j.model,
                stage_path(s->path[0], s->T, "tokens.fts"), NULL);
    command_add(hessian, "--key", s->j.ckey, "-o",
                stage_path(s->path[1], s->C, "fisher.fts"), NULL);
    return 0;
}

/* Hidden states and Hessians of one layer; the states come from the tokens, or
 * from the layer before. */
static int stage_calibrate(struct stage *s, struct err *e)
{
    bool first = !s->layer;
    struct command *c = stage_calib(s);

    (void)e;
    command_add(c, "--layer", number_word(s->counts[1], s->layer),
                "--expect-key", first ? s->j.tkey : s->j.ckey, "--key",
                s->j.ckey, NULL);
    if (s->layer < s->j.layers - 1)
        command_add(c, "--hidden",
                    stage_layer_path(s->path[0], s->C, "hidden", s->layer),
                    NULL);
    command_add(c, s->j.model,
                first ?
                    stage_path(s->path[1], s->T, "tokens.fts") :
                    stage_layer_path(s->path[1], s->C, "hidden", s->layer - 1),
                NULL);
    c = stage_hessian(s);
    stage_weigh(s, c);
    command_add(c, "--key", s->j.ckey, "-o",
                stage_layer_path(s->path[2], s->C, "hessian", s->layer), NULL);
    return 0;
}

static void calibrate_tidy(struct stage *s)
{
    if (s->layer > 0)
        unlink(stage_layer_path(s->path[0], s->C, "hidden", s->layer - 1));
}

/* Codes of one layer's weights; h: file of Hessians, NULL: none. */
static int solve_layer(struct stage *s, const char *h, struct err *e)
{
    struct command *c;

    command_add(stage_weights(s), "--layer",
                number_word(s->counts[1], s->layer), "--linears", s->j.model,
                NULL);
    c = stage_grid(s);
    if (h)
        command_add(c, "--hessian", h, NULL);
    if (stage_solve_tool(s, &c, e) < 0)
        return e->code;
    if (h)
        command_add(c, "--hessian", h, NULL);
    stage_split(s);
    return 0;
}

static int stage_solve(struct stage *s, struct err *e)
{
    return solve_layer(
        s, stage_layer_path(s->path[3], s->C, "hessian", s->layer), e);
}

static int stage_round(struct stage *s, struct err *e)
{
    return solve_layer(s, NULL, e);
}

/* What a step is told. */
enum takes { NOTHING, LAYER, STOP };

static const struct {
    const char *name;
    stage_plan *plan;
    enum takes takes;
    bool quiet;  /* standard output is not used */
    bool solves; /* makes codes of layers */
    void (*tidy)(
        struct stage *s); /* remove what no later step reads; or NULL */
} stages[] = {
    { "tokens", stage_tokens, NOTHING, false, false, NULL },
    { "loop", stage_loop, NOTHING, false, true, loop_tidy },
    { "fisher", stage_fisher, NOTHING, false, false, NULL },
    { "calibrate", stage_calibrate, LAYER, false, false, calibrate_tidy },
    { "solve", stage_solve, LAYER, true, true, NULL },
    { "round", stage_round, LAYER, true, true, NULL },
    { "moments", stage_moments, STOP, false, false, stage_moments_tidy },
    { "merge", stage_merge, STOP, false, false, NULL },
    { "share", stage_share, STOP, false, false, NULL },
    { "layer", stage_layer, LAYER, true, true, stage_layer_tidy },
    { "text", stage_given, NOTHING, false, false, NULL },
    { "own", stage_own, NOTHING, false, false, NULL },
    { "tune", stage_tune, NOTHING, true, true, NULL },
    { "pack", stage_pack, NOTHING, false, false, NULL },
    { "result", stage_result, NOTHING, false, false, states_tidy },
};

/* ---- layers that stay as they are ---- */

/* What forge-split publishes of a layer, without any linear. */
static int publish_empty(const struct stage *s, int64_t layer, struct err *e)
{
    char codes[PATH_ROOM], report[PATH_ROOM];
    bool tuned = !strcmp(s->name, "tune");
    const char *dir = tuned ? s->U : s->S;
    const struct stream_output out = { .path = stage_layer_path(codes, dir,
                                                                "codes", layer),
                                       .key = tuned ? s->j.ukey : s->j.skey };
    struct stream_writer *w;

    snprintf(report, sizeof(report), "%s/report-%" PRId64 ".jsonl", dir, layer);
    if (!access(codes, F_OK))
        return 0;
    if (publish_text(report, "", 0, e) < 0 || stream_create(&w, &out, e) < 0)
        return e->code;
    return stream_finish(w, e);
}

/* Publish the layers of the step in which no linear is quantized.  1: it is the
 * only layer, and nothing is left to do; 0. */
static int publish_unquantized(const struct stage *s, struct err *e)
{
    const struct module_choice choice = job_choice(&s->j);
    int64_t first = s->layer < 0 ? 0 : s->layer;
    int64_t end = s->layer < 0 ? s->j.layers : first + 1;
    struct model_config c;
    int rc = job_config(&s->j, &c, e), last = 0;

    if (rc < 0)
        return rc;
    for (int64_t i = first; i < end && rc >= 0; i++) {
        last = !module_chosen_count(&choice, &c, i);
        if (last)
            rc = publish_empty(s, i, e);
    }
    model_config_release(&c);
    return rc < 0 ? rc : s->layer >= 0 && last;
}

/* ---- command_stage() ---- */

/* Write a line of the report with one write(2), since parallel steps share
 * it. */
static void say(const char *text, size_t n)
{
    if (write(STDOUT_FILENO, text, n) < 0)
        return; /* no forge quantize reads it */
}

/* But for reports of some rows of a linear: the layer's step has that of all. */
static void say_line(void *ctx, const char *text, size_t len)
{
    char *line = malloc(len + 1);

    (void)ctx;
    if (!line || memmem(text, len, ".rows-", 6)) {
        free(line);
        return;
    }
    memcpy(line, text, len);
    line[len] = '\n';
    say(line, len + 1);
    free(line);
}

/* E_DATA: an input has changed.  What the step has made is not of what the keys say. */
static int unchanged(const struct stage *s, struct err *e)
{
    static const char *const outputs[] = { "-o", "--hidden", "--weights",
                                           "--outputs" };

    if (!inputs_same(&s->j.in, s->j.model, s->j.text, e))
        return 0;
    for (int i = 0; i < s->p.n; i++)
        for (int k = 0; k + 1 < s->p.command[i].argc; k++)
            for (size_t o = 0; o < ARRAY_LEN(outputs); o++)
                if (!strcmp(s->p.command[i].argv[k], outputs[o]))
                    unlink(s->p.command[i].argv[k + 1]);
    return e->code;
}

static int run(struct stage *s, size_t which, struct err *e)
{
    char here[PATH_MAX];
    struct err changed;
    int null = -1, rc;

    mkdir(s->T, 0777);
    mkdir(s->C, 0777);
    mkdir(s->S, 0777);
    mkdir(s->U, 0777);
    if (!getcwd(here, sizeof(here)) || setenv("TMPDIR", here, 1))
        return err_set(e, E_IO, "the work directory has no name:");
    /* use the job's CPU level, whatever this machine has */
    if (cpu_choose(s->j.cpu, e) < 0)
        return err_prefix(e, "the run was planned on another machine");
    if (setenv("FORGE_CPU", s->j.cpu, 1))
        return err_set(e, E_TEMP, "out of memory");
    rc = unchanged(s, e);
    if (rc >= 0 && stages[which].solves && (s->j.only.n || s->j.skip.n))
        rc = publish_unquantized(s, e);
    if (rc > 0)
        return 0;
    if (rc < 0 || (rc = stages[which].plan(s, e)) < 0)
        return rc;
    if (stages[which].quiet)
        s->p.out = null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    rc = s->p.n ? pipes_run(&s->p, e) : 0;
    rc = stage_damaged(s, rc, e);
    if (s->p.n && unchanged(s, &changed) < 0) {
        rc = changed.code;
        *e = changed;
    }
    if (rc < -128) /* as a node that goes down: another may do the step */
        rc = e->code;
    if (null >= 0)
        close(null);
    if (rc > 0)
        return err_set(e, E_BUG, "a step ended with 1");
    return stage_moments_lost(s, rc, e);
}

static size_t find(const char *name)
{
    size_t i = 0;

    while (i < ARRAY_LEN(stages) && strcmp(stages[i].name, name) != 0)
        i++;
    return i;
}

static int take_layer(struct stage *s, const char *word, char behind,
                      struct err *e)
{
    char *end;

    s->layer = strtoll(word, &end, 10);
    if (*end != behind || end == word || s->layer < 0 ||
        s->layer >= s->j.layers)
        return err_set(e, E_USAGE, "'%s': no layer of the model", word);
    return 0;
}

/* word: LAYER-POINT. */
static int take_stop(struct stage *s, const char *word, const char *number,
                     stage_plan *plan, struct err *e)
{
    const char *point = strchr(word, '-');
    char *end;

    s->stop = point ? stops_find(&s->stops, s->layer, point + 1) : s->stops.n;
    s->number = strtoll(number, &end, 10);
    if (!*end && end > number && s->number >= 0 &&
        s->number < stage_steps(s, plan))
        return 0;
    return err_set(e, E_USAGE, "'%s' %s: no step of the plan", word, number);
}

static int find_kv_b(struct stage *s, struct err *e)
{
    struct model_config c;

    if (!s->j.only.n)
        return 0;
    if (job_config(&s->j, &c, e) < 0)
        return e->code;
    s->kv_b = c.kv_b;
    model_config_release(&c);
    return 0;
}

static int prepare(struct stage *s, int argc, char **argv, size_t *which,
                   struct err *e)
{
    *which = argc > 1 ? find(argv[1]) : ARRAY_LEN(stages);
    s->layer = -1;
    s->stop = SIZE_MAX;
    if (*which == ARRAY_LEN(stages) || argc != 2 + (int)stages[*which].takes)
        return err_set(
            e, E_USAGE,
            "want the name of a step, and its layer, or its stop and "
            "number");
    s->name = argv[1];
    if (job_read(&s->j, ".", e) < 0 ||
        (stages[*which].takes &&
         take_layer(s, argv[2], stages[*which].takes == STOP ? '-' : 0, e) <
             0) ||
        (s->j.parts > 1 && stops_list(&s->stops, &s->j, e) < 0) ||
        (stages[*which].takes == STOP &&
         take_stop(s, argv[2], argv[3], stages[*which].plan, e) < 0))
        return e->code;
    if (find_kv_b(s, e) < 0)
        return e->code;
    job_tokens_dir(&s->j, s->T);
    job_calib_dir(&s->j, s->C);
    job_solve_dir(&s->j, s->S);
    job_codes_dir(&s->j, s->U);
    job_packed_dir(&s->j, s->P);
    job_grid(&s->j, &s->grid);
    job_solve(&s->j, &s->solve);
    opt_word(PROPAGATE_WORDS, s->j.propagate, s->propagate);
    number_word(s->threads, s->j.threads);
    number_word(s->memory, (int64_t)s->j.gpu_memory);
    return 0;
}

static int print_plan(struct err *e)
{
    struct job_variables v;
    struct job j;
    int rc;

    if (job_read(&j, ".", e) < 0)
        return e->code;
    rc = job_variables(&j, &v, e);
    job_release(&j);
    if (rc)
        return rc;
    for (int i = 0; i < JOB_VARIABLES; i++)
        printf("%s%s", i ? " " : "", v.text[i]);
    job_variables_release(&v);
    putchar('\n');
    return flush_stdout(e);
}

int command_stage(int argc, char **argv, struct err *e)
{
    static const struct opt none[] = { { OPT_END, 0, NULL, NULL, NULL, NULL, 0,
                                         0, false } };
    struct stage *s = mem_zero(1, sizeof(*s), "stage", e);
    double begun = seconds_now();
    char line[REASON_MAX + 32];
    size_t which;
    int n, rc;

    if (!s)
        return e->code;
    opt_parse(argc, argv, "stage NAME [LAYER | STOP NUMBER] | stage plan",
              "One step of pipeline.mk, in the work directory; plan: its "
              "variables.",
              none);
    if (argc == 2 && !strcmp(argv[1], "plan")) {
        free(s);
        return print_plan(e);
    }
    pipes_init(&s->p);
    s->p.captured = true;
    s->p.line = say_line;
    rc = prepare(s, argc, argv, &which, e);
    if (!rc) {
        n = s->layer < 0 ?
                snprintf(line, sizeof(line), "begin %s\n", s->name) :
                snprintf(line, sizeof(line), "begin %s %" PRId64 "\n", s->name,
                         s->layer);
        say(line, (size_t)n);
        rc = run(s, which, e);
        if (!rc) {
            if (stages[which].tidy)
                stages[which].tidy(s);
            stage_took(s, seconds_now() - begun);
        }
    }
    if (rc < 0) {
        n = snprintf(line, sizeof(line), "error %d %s%s\n", -e->code,
                     strncmp(e->msg, "forge-", 6) ? "forge: " : "", e->msg);
        say(line, (size_t)n);
    }
    stage_release(s);
    free(s);
    return rc;
}
