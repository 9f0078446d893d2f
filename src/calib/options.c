/* options.c - see options.h. */
#include "calib/options.h"

#include <string.h>

/* Whether an option, or FILE, is given that --synthetic has no use for. */
static bool runs_model(const struct calib_options *s)
{
    return s->input || s->to || s->hitmap || s->skip_experts || s->feedback ||
           s->codes.count || s->outputs.count || s->hidden || s->until ||
           s->part.parts || s->tool.expect_key;
}

/* Check the options of shares of experts and of their outputs. */
static int check_share(struct calib_options *s, struct err *e)
{
    struct share *of = &s->share;

    if (of->share >= (of->shares ? of->shares : 1))
        return err_set(e, E_USAGE,
                       "--share counts from 0 and is below --shares");
    if (of->shares &&
        (!s->feedback || s->layer >= 0 || s->hidden || s->codes.count ||
         s->part.parts || !s->input || s->outputs.count > 1))
        return err_set(e, E_USAGE,
                       "--shares wants --feedback and files of states, and at "
                       "most one --outputs");
    if (s->outputs.count && !of->shares && (!s->until || !s->part.parts))
        return err_set(e, E_USAGE,
                       "--outputs wants --shares, or --until and --parts");
    of->outputs = s->outputs.count ? s->outputs.item[0] : NULL;
    of->expect_key = s->tool.expect_key;
    return 0;
}

int calib_options_check(struct calib_options *s, struct err *e)
{
    if (s->to && !strcmp(s->to, "embed"))
        s->output = CALIB_EMBED;
    else if (s->to && !strcmp(s->to, "hidden"))
        s->output = CALIB_HIDDEN;
    else if (s->to)
        return err_set(e, E_USAGE, "--to: '%s' is none of embed, hidden",
                       s->to);
    if (s->feedback && !strcmp(s->feedback, "-") &&
        (!s->input || !strcmp(s->input, "-")))
        return err_set(e, E_USAGE, "--feedback - wants the sequences as FILE");
    if (s->propagate && !s->feedback && !s->until)
        return err_set(e, E_USAGE,
                       "--propagate both wants --feedback or --until");
    if (s->part.part >= (s->part.parts && !s->feedback ? s->part.parts : 1))
        return err_set(e, E_USAGE,
                       "--part: from 0, below --parts; not with --feedback");
    if (s->loans && !s->feedback)
        return err_set(e, E_USAGE, "--loans wants --feedback");
    if (!!s->to + !!s->feedback + !!s->hitmap + !!s->until > 1)
        return err_set(
            e, E_USAGE,
            "--to, --hitmap, --feedback, --until exclude each other");
    if (s->until && s->layer >= 0)
        return err_set(e, E_USAGE,
                       "--until names a layer: --layer does not go with it");
    if (s->hitmap)
        s->output = CALIB_HITMAP;
    if (s->hidden && (s->to || (s->layer < 0 && !s->feedback && !s->until)))
        return err_set(e, E_USAGE,
                       "--hidden goes with --layer, --feedback or --until");
    if (!s->gaussian && (s->synthetic.sequences || s->synthetic.seqlen))
        return err_set(e, E_USAGE, "--sequences and --seqlen want --synthetic");
    if (s->gaussian && runs_model(s))
        return err_set(
            e, E_USAGE,
            "--synthetic runs no model: it takes no FILE, and --layer "
            "and --dtype alone");
    if (check_share(s, e) < 0)
        return e->code;
    s->synthetic.layer = s->layer;
    s->synthetic.kv_b = s->kv_b;
    s->synthetic.dtype = s->dtype ? DT_F32 : DT_BF16;
    return 0;
}
