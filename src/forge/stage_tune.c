/* stage_tune.c - see stage_tune.h. */
#include "forge/stage_tune.h"

#include <inttypes.h>

int stage_own(struct stage *s, struct err *e)
{
    (void)e;
    command_add(stage_device_tool(s, "forge-generate"), "--sequences",
                number_word(s->counts[1], TUNE_BATCH * s->j.tune), "--tokens",
                number_word(s->counts[2], s->j.seqlen), "--key", s->j.ukey,
                "-o", stage_path(s->path[0], s->U, "own.fts"), s->j.model,
                NULL);
    return 0;
}

int stage_tune(struct stage *s, struct err *e)
{
    struct command *c = stage_device_tool(s, "forge-tune");

    (void)e;
    command_add(c, "--steps", number_word(s->counts[1], s->j.tune), "--batch",
                number_word(s->counts[2], TUNE_BATCH), "--tokens",
                stage_path(s->path[0], s->T, "tokens.fts"), "--tokens-key",
                s->j.tkey, "--tokens", stage_path(s->path[1], s->U, "own.fts"),
                "--expect-key", s->j.skey, "--key", s->j.ukey, s->j.model,
                NULL);
    for (int64_t i = 0; i < s->j.layers; i++)
        command_add(c, stage_text(s, "%s/codes-%" PRId64 ".fts", s->S, i),
                    NULL);
    stage_split_tuned(s);
    return 0;
}
