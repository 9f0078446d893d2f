/* quantize.c - forge quantize: its options, and the order of its steps. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/expertmap.h"
#include "common/io/file.h"
#include "common/math/threads.h"
#include "forge/arguments.h"
#include "forge/bits.h"
#include "forge/command.h"
#include "forge/env.h"
#include "forge/follow.h"
#include "forge/request.h"
#include "forge/stage_tools.h"
#include "prune/prune.h"
#include "shard/outdir.h"
#include "tokens/upstream.h"
#include "work/place_names.h"

/* Below so many operations the run is too short for half a second of
 * measuring. */
static const double worth_measuring = 2e13;

static void parse(struct request *r, int argc, char **argv)
{
    struct job *j = &r->j;
    const char *device = "auto";
    const struct opt table[] = {
        { OPT_LIST, 0, "text", "FILE",
          "calibrate on FILE: text, JSON lines or .npy of ids", &r->texts, 0, 0,
          false },
        { OPT_INT, 0, "sequences", "N", "calibration sequences [128]",
          &j->sequences, 1, 1000000, false },
        { OPT_INT, 0, "seqlen", "T", "tokens in each [512]", &j->seqlen, 1,
          1000000, false },
        { OPT_CHOICE, 0, "layout", JOB_LAYOUTS,
          "how the result is stored [compressed-tensors]", &j->layout, 0, 0,
          false },
        { OPT_CHOICE, 0, "rest", GGUF_REST_WORDS,
          "layout gguf: matrices that are not in 4 bits [stored]", &j->rest, 0,
          0, false },
        { OPT_INT, 0, "group", "G",
          "inputs per scale, -1: all of a linear [128; layout gguf: 32]",
          &j->group, -1, GROUP_ALL, false },
        { OPT_FLAG, 0, "sym", NULL,
          "symmetric grids: the zero point is 8, the default", &r->sym, 0, 0,
          false },
        { OPT_FLAG, 0, "asym", NULL,
          "asymmetric grids: a zero point for each group", &r->asym, 0, 0,
          false },
        { OPT_LIST, 0, "grid", "PATTERN=WORD[,WORD]",
          "of linears whose path matches: inputs per scale, sym, asym, 4bit, "
          "8bit; may be repeated, the last one decides",
          &r->grids, 0, 0, false },
        { OPT_FLOAT, 0, "bits", "B",
          "choose the linears' grids so that a weight takes B bits at most, "
          "scales included",
          &r->bits, 2, 16, false },
        { OPT_LIST, 0, "modules", "PATTERN",
          "quantize only linears whose path matches; may be repeated [all "
          "but kv_b_proj]",
          &r->modules, 0, 0, false },
        { OPT_LIST, 0, "skip", "PATTERN",
          "leave linears as they are whose path matches; may be repeated",
          &r->skip, 0, 0, false },
        { OPT_CHOICE, 0, "method", METHOD_WORDS,
          "rtn: round to nearest, no data [gptq]", &j->method, 0, 0, false },
        { OPT_CHOICE, 0, "search", SEARCH_WORDS,
          "with --method rtn: search each group's scale, or take the one that "
          "spans it [auto]",
          &j->search, 0, 0, false },
        { OPT_CHOICE, 0, "effort", EFFORT_WORDS,
          "nearer to the original, and slower [default]", &j->effort, 0, 0,
          false },
        { OPT_CHOICE, 0, "propagate", PROPAGATE_WORDS,
          "calibrate layers on the output of the quantized or original layers "
          "before them; both: quantized, with targets corrected by the "
          "original [both; with --effort fast: quantized]",
          &j->propagate, 0, 0, false },
        { OPT_INT, 0, "blend", "K",
          "experts: blend their Hessians with the layer's, as K tokens for "
          "each input [2]",
          &j->blend, 0, 1000000, false },
        { OPT_STR, 0, "work", "DIR",
          "keep intermediate files in DIR, for reuse [OUT.work, removed at the "
          "end]",
          &r->work, 0, 0, false },
        { OPT_INT, 0, "jobs", "N",
          "with --parts, --propagate original or --method rtn: steps at a "
          "time [1]",
          &j->jobs, 1, 1024, false },
        { OPT_INT, 0, "parts", "P",
          "run the tokens in P parts, and solve in P shares, as steps of their "
          "own, for several machines [1]",
          &j->parts, 1, PARTS_MAX, false },
        { OPT_STR, 0, "scratch", "DIR",
          "with --parts: keep each part's states in DIR of the machine where "
          "they are made [the work directory]",
          &r->scratch, 0, 0, false },
        { OPT_STR, 0, "device", "auto|cpu|cuda[:N]",
          "where to compute; auto: a GPU if there is one [auto]", &device, 0, 0,
          false },
        { OPT_SIZE, 0, "gpu-memory", "SIZE",
          "GPU memory that each tool may hold, e.g. 8G [all that is free; "
          "tools that run the model: half]",
          &j->gpu_memory, 0, 0, false },
        { OPT_SIZE, 0, "states-memory", "SIZE",
          "memory for states of all tokens, which are in files where they take "
          "more [half of what is left]",
          &r->states_memory, 0, 1, true },
        { OPT_INT, 0, "tune", "STEPS",
          "then tune the codes of all layers by what the model predicts, in so "
          "many steps [0; effort best on a GPU: 640 or 512 for a small model]",
          &j->tune, 0, TUNE_MAX, false },
        { OPT_INT, 0, "tune-batch", "N", "sequences of such a step [16 or 8]",
          &j->tune_batch, 1, TUNE_BATCH_MAX, false },
        { OPT_SIZE, 0, "shard-size", "SIZE",
          "most bytes in a file of OUT, e.g. 500MB, 2GiB [an eighth of all, "
          "from 128MB to 5GB]",
          &r->shard_size, 0, 0, false },
        { OPT_FLAG, 'n', "dry-run", NULL,
          "print the plan and its cost, and do nothing", &r->dry_run, 0, 0,
          false },
        { OPT_FLOAT, 0, "rate", "GFLOPS",
          "speed that times are estimated from [measured for half a second]",
          &r->rate, 1e-3, 1e12, false },
        { OPT_INT, 0, "keep", "K",
          "prune first: experts to keep in each layer of a mixture",
          &r->prune.keep, 1, 65536, false },
        { OPT_CHOICE, 0, "by", PRUNE_WORDS, "... ranked by [tokens]",
          &r->prune.by, 0, 0, false },
        { OPT_CHOICE, 0, "mode", EXPERT_MODES,
          "... into a smaller model, or with a map beside it [prune]",
          &r->prune.mode, 0, 0, false },
        { OPT_STR, 0, "hitmap", "FILE",
          "... by the router's statistics in FILE [gathered on --text]",
          &r->prune.hitmap, 0, 0, false },
        COMMAND_COMMON(&j->threads, &r->progress, &r->quiet),
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i =
        opt_parse(argc, argv, "quantize MODEL OUT --text FILE [option]...",
                  "Turn a Hugging Face checkpoint into a 4-bit one.", table);

    r->model = argc - i == 2 ? argv[i] : NULL;
    r->out = argc - i == 2 ? argv[i + 1] : NULL;
    snprintf(j->device, sizeof(j->device), "%s", device);
}

/* The options of forge prune. */
static int settle_prune(struct request *r, struct err *e)
{
    struct prune_request *p = &r->prune;
    const char *alone = p->by != NOT_GIVEN   ? "--by" :
                        p->mode != NOT_GIVEN ? "--mode" :
                        p->hitmap            ? "--hitmap" :
                                               NULL;

    if (!p->keep && alone)
        return err_set(e, E_USAGE, "%s wants --keep", alone);
    if (p->by == NOT_GIVEN)
        p->by = 0;
    if (p->mode == NOT_GIVEN)
        p->mode = 0;
    p->text = r->text;
    p->sequences = r->j.sequences;
    p->seqlen = r->j.seqlen;
    p->threads = r->j.threads;
    p->shard_size = r->shard_size ? r->shard_size : SHARD_SIZE;
    /* among our JSON lines there are no others */
    p->captured = r->progress == PROGRESS_JSON;
    p->progress = p->captured ? PROGRESS_NEVER : r->progress;
    p->quiet = r->quiet || p->captured;
    return 0;
}

/* The options that are about tokens.  --method rtn takes those that say which tokens, as
 * a script gives them to every method, and refuses what is done with them. */
static int settle_tokens(struct request *r, struct err *e)
{
    struct job *j = &r->j;
    const char *alone = NULL;

    if (j->method == METHOD_RTN)
        alone = j->effort != NOT_GIVEN         ? "--effort" :
                j->propagate != NOT_GIVEN      ? "--propagate" :
                j->blend != NOT_GIVEN          ? "--blend" :
                j->tune > 0                    ? "--tune" :
                j->parts > 1                   ? "--parts" :
                r->states_memory != UINT64_MAX ? "--states-memory" :
                                                 NULL;
    if (alone)
        return err_set(e, E_USAGE, "%s: --method rtn has no tokens", alone);
    if (j->blend == NOT_GIVEN)
        j->blend = 2;
    if (j->sequences == NOT_GIVEN)
        j->sequences = 128;
    if (j->seqlen == NOT_GIVEN)
        j->seqlen = 512;
    if (j->effort == NOT_GIVEN)
        j->effort = EFFORT_DEFAULT;
    if (j->propagate == PROPAGATE_BOTH && j->effort == EFFORT_FAST)
        return err_set(e, E_USAGE,
                       "--propagate both is nothing for --effort fast");
    if (j->propagate == NOT_GIVEN)
        j->propagate =
            j->effort == EFFORT_FAST ? PROPAGATE_QUANTIZED : PROPAGATE_BOTH;
    if (j->tune_batch && j->tune <= 0 && !tune_open(j))
        return err_set(e, E_USAGE, "--tune-batch wants --tune");
    if (j->parts > j->sequences)
        return err_set(e, E_USAGE, "--parts: %lld of %lld sequences",
                       (long long)j->parts, (long long)j->sequences);
    if (r->scratch && j->parts == 1)
        return err_set(e, E_USAGE, "--scratch wants --parts");
    return 0;
}

static int settle_group(struct request *r, struct err *e)
{
    struct job *j = &r->j;

    if (j->group == GROUP_NOT_GIVEN) /* blocks of GGUF have a scale for 32 */
        j->group = j->layout == JOB_GGUF ? 32 : 128;
    if (grid_options(&j->group, NULL, 0, e))
        return e->code;
    return r->bits > 0 && j->group == GROUP_ALL ?
               err_set(e, E_USAGE, "--bits chooses groups: leave out --group") :
               0;
}

/* Check combinations of options, and set their defaults. */
static int settle(struct request *r, struct err *e)
{
    struct job *j = &r->j;

    if (!r->model)
        return err_set(e, E_USAGE, "want MODEL and OUT (try --help)");
    if (only_text(&r->texts, &r->text, e) < 0)
        return e->code;
    if (r->sym && r->asym)
        return err_set(e, E_USAGE, "--sym and --asym exclude each other");
    if (!*r->model || !*r->out || (r->work && !*r->work))
        return err_set(e, E_USAGE, "a path is empty");
    for (int i = 0; i < r->modules.count; i++)
        if (globs_add(&j->only, r->modules.item[i], e) < 0)
            return e->code;
    for (int i = 0; i < r->skip.count; i++)
        if (globs_add(&j->skip, r->skip.item[i], e) < 0)
            return e->code;
    for (int i = 0; i < r->grids.count; i++)
        if (grid_rule_check(r->grids.item[i], e) < 0 ||
            globs_add(&j->grids, r->grids.item[i], e) < 0)
            return e->code;
    if (j->search != SEARCH_AUTO && j->method != METHOD_RTN)
        return err_set(e, E_USAGE, "--search is for --method rtn");
    if (j->search != SEARCH_AUTO && j->grids.n)
        return err_set(e, E_USAGE,
                       "--grid: --search absmax has grids of one kind");
    if (j->search != SEARCH_AUTO && j->group == -1)
        return err_set(e, E_USAGE,
                       "--group -1: --search absmax wants a number of inputs");
    if (settle_tokens(r, e) < 0 ||
        env_number("FORGE_STEP_COST", STEP_COST_MAX, &j->step, e) < 0)
        return e->code;
    if (j->gpu_memory && !strcmp(j->device, "cpu"))
        return err_set(e, E_USAGE, "--gpu-memory: --device cpu has none");
    j->symmetric = !r->asym;
    if (j->rest != NOT_GIVEN && j->layout != JOB_GGUF)
        return err_set(e, E_USAGE, "--rest is for --layout gguf");
    if (r->shard_size && j->layout == JOB_GGUF)
        return err_set(e, E_USAGE, "--shard-size: --layout gguf is one file");
    if (j->rest == NOT_GIVEN)
        j->rest = GGUF_REST_STORED;
    if (settle_group(r, e) < 0)
        return e->code;
    if (settle_prune(r, e) < 0)
        return e->code;
    verbosity = r->quiet ? -1 : 0;
    threads_set(j->threads);
    return 0;
}

static int check(struct request *r, struct err *e)
{
    struct job *j = &r->j;

    if (gpu_ask(&r->gpu, j->device, j->gpu_memory,
                !r->dry_run && make_in_pipe(j), e) < 0 ||
        check_paths(r, e) < 0 ||
        (r->prune.keep && prune_check(&r->prune, j->model, e) < 0) ||
        check_model(r, e) < 0 || bits_check(r, e) < 0 ||
        ((strcmp(j->device, "auto") || tune_open(j)) &&
         gpu_learn(&r->gpu, e) < 0) ||
        check_launch(e) < 0)
        return e->code;
    tune_settle(r);
    return check_tools(e);
}

/* --keep: make a pruned model in the work directory, named by a key of its
 * inputs, and quantize that. */
static int prune(struct request *r, struct err *e)
{
    int rc;

    if (keys_pruned(r, e) < 0)
        return e->code;
    rc = access(r->pruned, F_OK) ?
             prune_make(&r->prune, r->j.model, r->pruned, e) :
             stage_checkpoint(r->pruned, e);
    if (!rc && inputs_same(&r->j.in, r->j.model, r->j.text, e) < 0) {
        place_drop(r->pruned);
        rc = e->code;
    }
    if (rc)
        return rc;
    strcpy(r->j.model, r->pruned);
    return check_model(r, e);
}

/* ---- command_quantize() ---- */

static int blame_stdin(struct err *e)
{
    return err_prefix(e, "'<stdin>'");
}

static int copy(struct publish *to, struct upstream *u, const char *text,
                size_t n, struct err *e)
{
    if (upstream_watch(u, text, n, e) < 0)
        return blame_stdin(e);
    return publish_write(to, text, n, e);
}

/* --text -: keep the text in the work directory, where steps can read it and
 * the same run finds it again. */
static int keep_text(struct request *r, struct err *e)
{
    struct job *j = &r->j;
    struct publish *to;
    struct upstream upstream = { .fd = STDIN_FILENO };
    static char buf[1 << 16];
    ssize_t n;
    size_t all = 0;
    int rc = 0;

    if ((size_t)snprintf(j->text, sizeof(j->text), "%s/%s", r->work_path,
                         PLACE_TEXT) >= sizeof(j->text))
        return err_set(e, E_USAGE, "'%.200s...': path is too long",
                       r->work_path);
    if (publish_create(&to, j->text, e) < 0)
        return e->code;
    while (!rc && (n = read(STDIN_FILENO, buf, sizeof(buf))) != 0) {
        if (n > 0)
            rc = copy(to, &upstream, buf, (size_t)n, e);
        else if (errno != EINTR)
            rc = err_set(e, E_IO, "'<stdin>': cannot read:");
        all += n > 0 ? (size_t)n : 0;
    }
    if (!rc && upstream_watch(&upstream, buf, 0, e) < 0)
        rc = blame_stdin(e);
    if (!rc && !all)
        rc = err_set(e, E_DATA, "'<stdin>': is empty");
    if (rc) {
        publish_discard(to);
        return rc;
    }
    r->text = r->prune.text = j->text;
    return publish_commit(to, e);
}

/* The part of the run in the work directory, which is locked. */
static int work(struct request *r, struct err *e)
{
    struct room room;
    int rc;

    place_collect(&r->place, true, NULL);
    if (text_piped(r) && keep_text(r, e) < 0)
        return e->code;
    if (r->prune.keep && (rc = prune(r, e)))
        return rc;
    if (r->bits > 0 && (rc = bits_settle(r, e)))
        return rc;
    room_plan(r, false, &room);
    if (keys_make(r, e) < 0 || room_check(r, &room, e) < 0)
        return e->code;
    r->j.states_memory = (uint64_t)room.states_kept;
    if (room.flops[r->j.effort] > worth_measuring && !r->quiet)
        room_plan(r, true, &room);
    return make_run(r, room.seconds[r->j.effort], e);
}

static int run(struct request *r, struct err *e)
{
    struct room room;
    int rc;

    if ((r->dry_run || (strcmp(r->j.device, "cpu") && room_states_large(r))) &&
        gpu_learn(&r->gpu, e) < 0)
        return e->code;
    room_plan(r, r->dry_run, &room);
    if (r->dry_run) {
        room_print(r, &room);
        return flush_stdout(e);
    }
    outdir_collect(r->j.out); /* frees disk space, before that is checked */
    if (gpu_room_check(r, e) < 0 || room_check(r, &room, e) < 0 ||
        place_open(&r->place, r->work_path, r->work != NULL, e) < 0)
        return e->code;
    rc = work(r, e);
    if (!rc && r->place.temporary)
        place_remove(&r->place);
    else if (rc)
        place_remove_unused(&r->place);
    place_close(&r->place);
    return rc;
}

int command_quantize(int argc, char **argv, struct err *e)
{
    struct request *r = mem_zero(1, sizeof(*r), "quantize", e);
    int rc;

    if (!r)
        return e->code;
    r->place.lock = -1;
    r->j.group = GROUP_NOT_GIVEN;
    r->j.sequences = NOT_GIVEN;
    r->j.seqlen = NOT_GIVEN;
    r->j.rest = NOT_GIVEN;
    r->prune.by = NOT_GIVEN;
    r->prune.mode = NOT_GIVEN;
    r->j.blend = NOT_GIVEN;
    r->j.tune = NOT_GIVEN;
    r->states_memory = UINT64_MAX;
    r->j.jobs = 1;
    r->j.parts = 1;
    r->j.step = STEP_COST_AUTO;
    r->j.away = env_away();
    r->j.effort = NOT_GIVEN;
    r->j.propagate = NOT_GIVEN;
    rc = job_command(&r->j, "quantize", argc, argv, e); /* in its order */
    if (!rc) {
        parse(r, argc, argv);
        rc = settle(r, e);
    }
    if (!rc)
        rc = check(r, e);
    if (!rc)
        rc = run(r, e);
    if (rc && !r->ended && !r->dry_run)
        follow_never(r, abs(rc), e->msg);
    gpu_release(&r->gpu);
    plan_release(&r->plan);
    job_release(&r->j);
    free(r);
    return rc;
}
