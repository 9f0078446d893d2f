/* forge-calib - run a model on calibration sequences, and tell what its linears
 * read.  See forge-calib(1). */
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/calib.h"
#include "common/device.h"
#include "common/tool.h"

struct settings {
    struct tool tool;
    int64_t layer; /* -1: not given */
    const char *to, *hidden;
    int all, advance, dtype, device;
    struct opt_list codes;
    const char *model, *input;
    enum calib_to point;
    bool whole; /* all layers */
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_INT, 'l', "layer", "I", "run this layer only [all]", &s->layer, 0,
          INT_MAX, false },
        { OPT_STR, 't', "to", "POINT",
          "stop at embed, attn_in, attn_out, mlp_in, mlp_mid or hidden, and "
          "put out states",
          &s->to, 0, 0, false },
        { OPT_FLAG, 0, "advance", NULL, "the same as --to hidden", &s->advance,
          0, 0, false },
        { OPT_FLAG, 'a', "all", NULL,
          "put out all four activations of the layer [without --to]", &s->all,
          0, 0, false },
        { OPT_STR, 0, "hidden", "FILE",
          "with --all: publish the next layer's hidden states as FILE",
          &s->hidden, 0, 0, true },
        { OPT_LIST, 'c', "codes", "FILE",
          "run the linears in FILE quantized (may be repeated)", &s->codes, 0,
          0, true },
        { OPT_CHOICE, 0, "dtype", "bf16|f32", "precision [bf16]", &s->dtype, 0,
          0, false },
        DEVICE_OPTION(&s->device),
        TOOL_COMMON(&s->tool),
        TOOL_STREAM(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] MODEL [FILE] > activations",
                      "Run a model on calibration sequences and put out what "
                      "its linears read.",
                      table);

    if (argc - i < 1 || argc - i > 2)
        die(E_USAGE, "want MODEL and at most one FILE (try --help)");
    s->model = argv[i];
    s->input = argv[i + 1];
    tool_apply(&s->tool);
}

static enum calib_to parse_point(const char *word)
{
    static const char *const words[] = { "embed",    "attn_in", "q_lat",
                                         "attn_out", "mlp_in",  "mlp_mid",
                                         "hidden" };

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (!strcmp(word, words[i]))
            return TO_EMBED + (int)i;
    die(E_USAGE,
        "--to: '%s' is none of embed, attn_in, attn_out, mlp_in, mlp_mid, "
        "hidden",
        word);
}

/* What the options mean together. */
static void plan(struct settings *s)
{
    if (s->advance && s->to && strcmp(s->to, "hidden"))
        die(E_USAGE, "--advance is --to hidden, not --to %s", s->to);
    if (s->advance)
        s->to = "hidden";
    if (s->all && s->to)
        die(E_USAGE, "--all and --to exclude each other");
    s->point = s->to ? parse_point(s->to) : TO_ALL;
    s->whole = !s->to && !s->all && s->layer < 0;
    if (s->hidden && (s->to || s->whole))
        die(E_USAGE, "--hidden goes with --all or --layer");
}

/* Where hidden states of a whole model lie: $TMPDIR, or beside the output. */
static const char *temporary_dir(const struct settings *s)
{
    static char path[PATH_MAX];
    const char *tmp = getenv("TMPDIR");

    if (tmp && *tmp)
        return tmp;
    if (!s->tool.output || !strcmp(s->tool.output, "-") ||
        snprintf(path, sizeof(path), "%s", s->tool.output) >= (int)sizeof(path))
        return "/tmp";
    return dirname(path);
}

static int read_codes(const struct settings *s, struct codes **c, struct err *e)
{
    if (!s->codes.count)
        return 0;
    if (codes_create(c, e) < 0)
        return e->code;
    for (int i = 0; i < s->codes.count; i++)
        if (codes_read(*c, s->codes.item[i], e) < 0)
            return e->code;
    return 0;
}

static int open_output(const struct settings *s, struct calib *c, struct err *e)
{
    struct stream_output out = { .path = s->tool.output, .key = s->tool.key };
    struct stream_output hidden = { .path = s->hidden, .key = s->tool.key };

    if (stream_create(&c->out, &out, e) < 0 ||
        (s->hidden && stream_create(&c->hidden, &hidden, e) < 0))
        return e->code;
    return 0;
}

static int open_model(const struct settings *s, struct calib *c, struct err *e)
{
    if (device_check(s->device, e) < 0 ||
        model_open(&c->m, s->model, s->dtype ? DT_F32 : DT_BF16, e) < 0)
        return e->code;
    if (s->layer >= model_config(c->m)->n_layers)
        return err_set(e, E_USAGE, "--layer: '%s' has layers 0 to %lld",
                       s->model, (long long)model_config(c->m)->n_layers - 1);
    return 0;
}

static int run(const struct settings *s, struct calib *c,
               struct stream_reader **in, struct err *e)
{
    struct stream_expect expect = { .key = s->tool.expect_key };

    if (open_model(s, c, e) < 0 || stream_open(in, s->input, &expect, e) < 0 ||
        feed_open(&c->feed, *in, c->m, s->layer, c->out, e) < 0)
        return e->code;
    if (c->hidden && stream_inherit(c->hidden, stream_head(*in), e) < 0)
        return e->code;
    return s->whole ? calib_model(c, e) : calib_layer(c, e);
}

static int finish(struct calib *c, struct err *e)
{
    if (c->hidden) {
        struct stream_writer *w = c->hidden;

        c->hidden = NULL;
        if (stream_finish(w, e) < 0)
            return e->code;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct settings s = { .layer = -1 };
    struct progress progress = { 0 };
    struct calib c = { .progress = &progress };
    struct stream_reader *in = NULL;
    struct codes *codes = NULL;
    struct err e;

    parse(&s, argc, argv);
    plan(&s);
    c.to = s.point;
    c.dir = temporary_dir(&s);
    progress_start(&progress, s.tool.progress, "sequences", 0);
    if (open_output(&s, &c, &e) < 0)
        die_err(&e);
    if (read_codes(&s, &codes, &e) < 0)
        goto failed;
    c.codes = codes;
    if (run(&s, &c, &in, &e) < 0 || finish(&c, &e) < 0)
        goto failed;
    if (stream_finish(c.out, &e) < 0)
        die_err(&e);
    progress_finish(&progress, NULL);
    feed_close(c.feed);
    stream_close(in);
    codes_free(codes);
    model_close(c.m);
    return 0;
failed:
    stream_abort(c.hidden, &e);
    stream_abort(c.out, &e);
    die_err(&e);
}
