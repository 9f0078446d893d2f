/* stage_tune.c - see stage_tune.h. */
#include "forge/stage_tune.h"

#include <inttypes.h>

#include "common/io/stream.h"

int stage_given(struct stage *s, struct err *e)
{
    int64_t half = job_tune_sequences(&s->j) / 2;

    (void)e;
    command_add(pipes_add(&s->p, "forge-tokens"), "-q", "--sequences",
                number_word(s->counts[1],
                            half > s->j.sequences ? half : s->j.sequences),
                "--seqlen", number_word(s->counts[2], s->j.seqlen), "--key",
                s->j.ukey, "-o", stage_path(s->path[0], s->U, "text.fts"),
                s->j.model, s->j.text, NULL);
    return 0;
}

/* *n: sequences in a file. */
static int count_sequences(const char *path, int64_t *n, struct err *e)
{
    struct stream_reader *r = NULL;
    struct frame f;
    uint64_t at;
    int rc = stream_open(&r, path, NULL, e);

    *n = 0;
    while (rc >= 0 && (rc = stream_skim(r, &f, &at, e)) > 0)
        *n += f.role == ROLE_TOKENS;
    stream_close(r);
    return rc;
}

int stage_own(struct stage *s, struct err *e)
{
    int64_t text, own;

    if (count_sequences(stage_path(s->path[0], s->U, "text.fts"), &text, e) < 0)
        return e->code;
    own = job_tune_sequences(&s->j) - text;
    command_add(stage_device_tool(s, "forge-generate"), "--sequences",
                number_word(s->counts[1],
                            own > s->j.tune_batch ? own : s->j.tune_batch),
                "--tokens", number_word(s->counts[2], s->j.seqlen), "--key",
                s->j.ukey, "-o", stage_path(s->path[1], s->U, "own.fts"),
                s->j.model, NULL);
    return 0;
}

int stage_tune(struct stage *s, struct err *e)
{
    struct command *c = stage_device_tool(s, "forge-tune");

    (void)e;
    command_add(c, "--steps", number_word(s->counts[1], s->j.tune), "--batch",
                number_word(s->counts[2], s->j.tune_batch), "--tokens",
                stage_path(s->path[0], s->U, "text.fts"), "--tokens-key",
                s->j.ukey, "--tokens", stage_path(s->path[1], s->U, "own.fts"),
                "--expect-key", s->j.skey, "--key", s->j.ukey, s->j.model,
                NULL);
    for (int64_t i = 0; i < s->j.layers; i++)
        command_add(c, stage_text(s, "%s/codes-%" PRId64 ".fts", s->S, i),
                    NULL);
    stage_split_tuned(s);
    return 0;
}
