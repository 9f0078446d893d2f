/* stage_pack.c - see stage_pack.h. */
#include "forge/stage_pack.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/io/file.h"

/* What a file in GGUF is made of, or OUT. */
static const char *checkpoint_path(const struct stage *s)
{
    return s->j.layout == JOB_GGUF ? s->P : s->j.out;
}

/* forge-pack of the codes of all layers, which it has in their order. */
static void pack_codes(struct stage *s)
{
    struct command *c = pipes_add(&s->p, "forge");

    c->feeder = true;
    c->beside = c->along = s->p.loop;
    c->before = stage_text(s, "%s/codes-%%.fts", s->U);
    c->n_before = s->j.layers;
    /* as fast as the words are read, which a GPU starts later than */
    c = stage_tool(s, "forge-pack");
    if (s->j.grids.n || s->j.group == GROUP_ALL)
        command_add(c, "--mixed", NULL);
    command_add(c, "--device", "cpu", "--layout",
                layout_name(job_layout(&s->j)), "--expect-key", s->j.ukey,
                NULL);
}

/* --search absmax: forge-pack of the weights themselves. */
static void pack_weights(struct stage *s)
{
    struct command *c = stage_weights(s);

    command_add(c, "--linears", s->j.model, NULL);
    c = stage_round_tool(s);
    command_add(c, "--layout", layout_name(job_layout(&s->j)), NULL);
}

void stage_add_pack(struct stage *s)
{
    struct command *c;

    if (s->j.search == SEARCH_ABSMAX)
        pack_weights(s);
    else
        pack_codes(s);
    c = stage_tool(s, "forge-shard");
    stage_choice(s, c);
    command_add(c, "--from", s->j.model, "--others", "--in-order",
                "--shard-size", stage_text(s, "%" PRIu64, s->j.shard_size),
                checkpoint_path(s), NULL);
}

/* A loop leaves the name of the checkpoint in this file: it has made that, too. */
static const char *made_path(struct stage *s)
{
    return stage_path(s->path[0], s->U, "made");
}

static bool is_made(struct stage *s)
{
    char *out = NULL;
    size_t len;
    struct err e;
    bool made = !access(checkpoint_path(s), F_OK) &&
                !file_slurp(&out, &len, made_path(s), PATH_MAX, &e) &&
                !strcmp(out, checkpoint_path(s));

    free(out);
    return made;
}

void stage_made(struct stage *s)
{
    const char *made = checkpoint_path(s);
    struct err e;

    if (publish_text(made_path(s), made, strlen(made), &e) < 0)
        warning("%s", e.msg);
}

int stage_pack(struct stage *s, struct err *e)
{
    (void)e;
    if (!is_made(s))
        stage_add_pack(s);
    return 0;
}

int stage_result(struct stage *s, struct err *e)
{
    const char *name = strrchr(s->j.out, '/') + 1;
    size_t n = strlen(name);
    char rest[JOB_WORD];

    if (s->j.layout != JOB_GGUF) {
        if (!is_made(s))
            stage_add_pack(s);
        return 0;
    }
    if (stage_checkpoint(s->P, e) < 0)
        return e->code;
    snprintf(s->counts[0], WORD, "%s",
             opt_word(GGUF_REST_WORDS, s->j.rest, rest));
    n -= n > 5 && !strcmp(name + n - 5, ".gguf") ? 5 : 0;
    snprintf(s->called, sizeof(s->called), "--name=%.*s", (int)n, name);
    command_add(stage_tool(s, "forge-gguf"), "--rest", s->counts[0], s->called,
                s->P, s->j.out, NULL);
    return 0;
}
