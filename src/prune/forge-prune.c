/* forge-prune - choose which experts to keep: reads hit maps, writes a map of
 * experts.  See forge-prune(1). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/expertmap.h"
#include "common/cli/tool.h"
#include "prune/prune.h"

struct settings {
    struct tool tool;
    const char *from;
    int64_t keep, seed;
    int by; /* enum prune_by */
    bool check;
    char **file;
    int n_files;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_STR, 0, "from", "MODEL",
          "the model whose experts they are: its config.json is read", &s->from,
          0, 0, true },
        { OPT_INT, 'k', "keep", "K", "experts to keep in each layer", &s->keep,
          1, 1 << 16, false },
        { OPT_CHOICE, 0, "by", PRUNE_WORDS,
          "statistic that ranks the experts [tokens]", &s->by, 0, 0, false },
        { OPT_INT, 0, "seed", "N", "seed of --by random [1]", &s->seed, 0, 1e15,
          false },
        { OPT_FLAG, 0, "check", NULL,
          "read nothing else: only see whether the model can keep K", &s->check,
          0, 0, false },
        TOOL_STREAM(&s->tool),
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "--from MODEL --keep K [options] [FILE...]",
                      "Choose the experts to keep, from a router's hit maps.",
                      table);

    if (!s->from || !s->keep)
        die(E_USAGE, "want --from MODEL and --keep K (try --help)");
    s->file = argv + i;
    s->n_files = argc - i;
}

/* Read the hit maps of one input; other frames are dropped. */
static int read_maps(const struct settings *s, const char *path,
                     struct hitmaps *maps, struct stream_writer *w,
                     struct err *e)
{
    const struct stream_expect expect = { .key = s->tool.expect_key };
    struct stream_reader *in;
    struct frame f;
    int rc;

    if (stream_open(&in, path, &expect, e))
        return e->code;
    while ((rc = stream_next(in, &f, e)) > 0)
        if (f.role == ROLE_HITMAP && hitmaps_add(maps, &f, e)) {
            rc = err_prefix(e, "'%s'", path ? path : "<stdin>");
            break;
        }
    if (!rc)
        rc = stream_inherit(w, stream_head(in), e);
    stream_close(in);
    return rc;
}

static int write_map(struct stream_writer *w, int64_t layer, const int32_t *map,
                     size_t experts, struct err *e)
{
    struct frame f = { .role = ROLE_MAP,
                       .dtype = DT_I32,
                       .ndim = 1,
                       .dims = { experts },
                       .data = map,
                       .len = experts * sizeof(*map) };

    layer_tensor_name(layer, "mlp", f.name);
    return stream_write(w, &f, e);
}

/* What is kept of each statistic, summed over the layers. */
struct shares {
    int64_t layers;
    double tokens, weights, least;
};

static int choose(const struct settings *s, const struct model_config *c,
                  const struct hitmaps *maps, struct stream_writer *w,
                  struct progress *progress, struct shares *sum, struct err *e)
{
    const struct prune_rule rule = { (enum prune_by)s->by, s->keep,
                                     (uint64_t)s->seed };
    size_t n = (size_t)c->moe.n_experts;
    int32_t *map = mem_alloc(n * sizeof(*map), "experts", e);
    int rc = map ? 0 : e->code;

    for (int64_t i = 0; i < c->n_layers && !rc; i++) {
        const struct hitmap *h = hitmaps_find(maps, i);
        double share;

        if (!model_layer_experts(c, i))
            continue;
        if (!h)
            rc = err_set(e, E_DATA, "layer %" PRId64 " has no hit map", i);
        if (rc || (rc = prune_layer(&rule, c, h, map, e)) ||
            (rc = write_map(w, i, map, n, e)))
            break;
        progress_step(progress, "experts", n * sizeof(*map));
        share = prune_share(h, map, HIT_TOKENS);
        sum->least = !sum->layers || share < sum->least ? share : sum->least;
        sum->layers++;
        sum->tokens += share;
        sum->weights += prune_share(h, map, HIT_WEIGHTS);
        info("layer %" PRId64 ": kept experts have %.1f %% of the choices", i,
             100 * share);
    }
    free(map);
    return rc;
}

static int run(const struct settings *s, struct stream_writer *w,
               struct model_config *c, struct progress *progress, char *text,
               size_t cap, struct err *e)
{
    struct hitmaps maps = { 0 };
    struct shares sum = { 0 };
    int rc = s->n_files ? 0 : read_maps(s, NULL, &maps, w, e);

    for (int i = 0; i < s->n_files && !rc; i++)
        rc = read_maps(s, s->file[i], &maps, w, e);
    if (!rc)
        rc = choose(s, c, &maps, w, progress, &sum, e);
    if (!rc && sum.layers)
        snprintf(text, cap,
                 "%" PRId64 " of %" PRId64 " experts kept, with %.1f %% of "
                 "the choices (least %.1f %%) and %.1f %% of the weight",
                 s->keep, c->moe.n_experts,
                 100 * sum.tokens / (double)sum.layers, 100 * sum.least,
                 100 * sum.weights / (double)sum.layers);
    hitmaps_release(&maps);
    return rc;
}

/* Refuse a 4-bit checkpoint, from which experts cannot be left out, before a
 * text is run through it. */
static void check_storage(const char *model)
{
    struct checkpoint *c;
    struct err e;
    int64_t group;

    if (checkpoint_open(&c, model, &e))
        die_err(&e);
    group = checkpoint_group(c);
    checkpoint_close(c);
    if (group)
        die(E_CONFIG,
            "'%s': has 4 bits already: prune the original, then quantize it",
            model);
}

int main(int argc, char **argv)
{
    struct settings s = { .seed = 1 };
    struct stream_output out = { 0 };
    struct model_config config;
    struct progress progress;
    struct stream_writer *w;
    char text[160] = "";
    struct err e;

    base_init(argv[0]);
    parse(&s, argc, argv);
    tool_apply(&s.tool);
    if (s.check)
        die_tells = NULL; /* no stream is asked for */
    out.path = s.tool.output;
    out.key = s.tool.key;
    if (model_config_read(&config, s.from, &e) ||
        expert_count_check(&config, s.keep, &e))
        die_err(&e);
    if (s.check) {
        check_storage(s.from);
        model_config_release(&config);
        return 0;
    }
    if (stream_create(&w, &out, &e))
        die_err(&e);
    progress_start(&progress, s.tool.progress, "layers", 0);
    if (run(&s, w, &config, &progress, text, sizeof(text), &e))
        tool_fail(w, &e);
    tool_finish(w, &progress, text);
    model_config_release(&config);
    return 0;
}
