/* forge-shard - write a checkpoint directory that runtimes load, and verify it
 * before it gets its name.  See forge-shard(1). */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/digests.h"
#include "checkpoint/sidecar.h"
#include "common/cli/tool.h"
#include "shard/outdir.h"
#include "shard/publishdir.h"
#include "work/inputs.h"

#define SHARD_SIZE 5000000000 /* as Hugging Face's own writers */

struct settings {
    struct tool tool;
    const char *from, *verify, *expect_key, *work;
    uint64_t shard_size;
    int64_t sample;
    int in_order, others;
    struct opt_list modules, skip;
    struct module_choice quantized; /* with others */
    const char *map_file;
    struct expert_map map;
    int mode; /* enum expert_mode */
    const char *out;
    char **file;
    int n_files;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_STR, 0, "from", "MODEL",
          "the checkpoint that was quantized: config, tokenizer, comparison",
          &s->from, 0, 0, true },
        { OPT_SIZE, 0, "shard-size", "SIZE",
          "most bytes of tensors in a file, e.g. 500MB, 5GB, 2GiB [5GB]",
          &s->shard_size, 0, 0, false },
        { OPT_INT, 0, "sample", "N",
          "linears to compare with MODEL after writing, 0 = none [14]",
          &s->sample, 0, 1 << 30, true },
        { OPT_FLAG, 0, "in-order", NULL,
          "a pipe has the layers in order: write a layer when the next begins",
          &s->in_order, 0, 0, true },
        { OPT_FLAG, 0, "others", NULL,
          "take all tensors but the quantized linears from MODEL itself",
          &s->others, 0, 0, false },
        { OPT_LIST, 0, "modules", "GLOB",
          "with --others: as given to forge-weights; may be repeated",
          &s->modules, 0, 0, false },
        { OPT_LIST, 0, "skip", "GLOB",
          "with --others: as given to forge-weights; may be repeated", &s->skip,
          0, 0, false },
        { OPT_STR, 0, "expert-map", "FILE",
          "map of forge-prune with which MODEL was read", &s->map_file, 0, 0,
          true },
        { OPT_CHOICE, 0, "mode", EXPERT_MODES,
          "with --expert-map: the mode of forge-weights [prune]", &s->mode, 0,
          0, false },
        { OPT_STR, 0, "verify", "DIR",
          "write nothing: check the checkpoint DIR, and compare it with --from "
          "if given",
          &s->verify, 0, 0, true },
        { OPT_STR, 0, "expect-key", "KEY",
          "refuse an input with another settings key", &s->expect_key, 0, 0,
          true },
        INPUTS_OPTION(&s->work),
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[options] --from MODEL OUT [FILE...]",
                      "Write a checkpoint directory from packed tensors, and "
                      "verify it.",
                      table);

    if (s->verify) {
        if (i < argc)
            die(E_USAGE, "'%s': --verify takes no operand", argv[i]);
        return;
    }
    if (!s->from)
        die(E_USAGE, "want --from MODEL (try --help)");
    if (i == argc)
        die(E_USAGE, "want OUT, the directory to write (try --help)");
    if (!s->others && (s->modules.count || s->skip.count))
        die(E_USAGE, "--modules and --skip are for --others");
    s->quantized = (struct module_choice){ s->modules.item, s->modules.count,
                                           s->skip.item, s->skip.count };
    s->out = argv[i];
    s->file = argv + i + 1;
    s->n_files = argc - i - 1;
}

/* The result of the verification, for the tool's last line. */
static const char *summary(const struct verify_report *r, int shards,
                           char *text, size_t cap)
{
    int n = 0;

    if (shards)
        n = snprintf(text, cap, "%d file%s, ", shards, shards > 1 ? "s" : "");
    n += snprintf(text + n, cap - (size_t)n,
                  "%" PRIu64 " of the linears in 4 bits; verified", r->packed);
    if (r->compared)
        snprintf(text + n, cap - (size_t)n,
                 ", %" PRIu64 " compared with the source (error at most %.3f "
                 "of the weights)",
                 r->compared, r->worst.relative);
    return text;
}

static void verify(const struct settings *s)
{
    const struct verify v = { .dir = s->verify,
                              .source = s->from,
                              .sample = s->sample,
                              .map = s->map_file ? &s->map : NULL,
                              .mode = (enum expert_mode)s->mode };
    struct verify_report r;
    uint64_t tensors;
    char text[256];
    struct err e;

    if (digests_hold(s->verify, &tensors, &e))
        die_err(&e);
    if (verify_checkpoint(&v, &r, &e)) {
        err_prefix(&e, "'%s'", s->verify);
        die_err(&e);
    }
    if (verbosity >= 0)
        fprintf(stderr, "%s: '%s': %s\n", progname, s->verify,
                summary(&r, 0, text, sizeof(text)));
}

/* Collect all inputs. */
static int collect_all(const struct settings *s, struct publisher *u,
                       struct err *e)
{
    const struct stream_expect expect = { .key = s->expect_key };

    if (!s->n_files)
        return collect_is_pipe() ?
                   publisher_pipe(u, &expect, e) :
                   collect(publisher_collection(u), "-", &expect, e);
    for (int i = 0; i < s->n_files; i++)
        if (collect(publisher_collection(u), s->file[i], &expect, e))
            return e->code;
    return 0;
}

/* Add the map of experts' history to the provenance. */
static int map_history(struct collection *c, const char *map, struct err *e)
{
    const struct stream_expect expect = { 0 };
    struct stream_reader *in;
    struct frame f;
    int rc = stream_open(&in, map, &expect, e);

    if (rc)
        return rc;
    rc = stream_next(in, &f, e);
    if (rc > 0)
        rc = provenance_head(&c->about, stream_head(in), e);
    stream_close(in);
    return rc;
}

static int run(const struct settings *s, struct outdir *o,
               struct progress *progress, char *text, size_t cap, struct err *e)
{
    const struct publication p = { .model = s->from,
                                   .shard_size = s->shard_size,
                                   .sample = s->sample,
                                   .in_order = s->in_order,
                                   .quantized =
                                       s->others ? &s->quantized : NULL,
                                   .map = s->map_file ? &s->map : NULL,
                                   .mode = (enum expert_mode)s->mode,
                                   .progress = progress };
    struct publisher *u = NULL;
    struct verify_report r;
    int shards = 0, rc;

    rc = sidecars_check(s->from, e);
    if (!rc)
        rc = publisher_open(&u, &p, o, e);
    if (!rc && s->map_file)
        rc = map_history(publisher_collection(u), s->map_file, e);
    if (!rc)
        rc = collect_all(s, u, e);
    if (!rc)
        rc = publisher_finish(u, &shards, &r, e);
    publisher_close(u);
    if (!rc)
        rc = inputs_check(s->work, e);
    if (!rc)
        rc = outdir_commit(o, e);
    if (!rc)
        summary(&r, shards, text, cap);
    return rc;
}

int main(int argc, char **argv)
{
    struct settings set = { .shard_size = SHARD_SIZE, .sample = 14 };
    struct progress progress = { 0 };
    struct outdir o = { 0 };
    char text[256];
    struct err e;

    parse(&set, argc, argv);
    tool_apply(&set.tool);
    if (set.map_file && expert_map_read(&set.map, set.map_file, &e))
        die_err(&e);
    if (set.verify) {
        verify(&set);
        return 0;
    }
    progress_start(&progress, set.tool.progress, "tensors", 0);
    if (outdir_begin(&o, set.out, &e) ||
        run(&set, &o, &progress, text, sizeof(text), &e)) {
        outdir_release(&o);
        if (outdir_signal()) {
            signal(outdir_signal(), SIG_DFL);
            raise(outdir_signal());
        }
        die_err(&e);
    }
    outdir_release(&o);
    progress_finish(&progress, text);
    return 0;
}
