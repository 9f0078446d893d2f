/* stage_tools.c - see stage_tools.h. */
#include "forge/stage_tools.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/digests.h"
#include "common/io/stream.h"
#include "split/along.h"

const char *stage_path(char to[PATH_ROOM], const char *dir, const char *name)
{
    snprintf(to, PATH_ROOM, "%s/%s", dir, name);
    return to;
}

const char *stage_layer_path(char to[PATH_ROOM], const char *dir,
                             const char *name, int64_t layer)
{
    snprintf(to, PATH_ROOM, "%s/%s-%" PRId64 ".fts", dir, name, layer);
    return to;
}

const char *stage_text(struct stage *s, const char *fmt, ...)
{
    va_list ap;
    char *text = NULL;
    struct err e;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    if (!text ||
        mem_grow(&s->text, (s->texts + 1) * sizeof(*s->text), "step", &e) < 0) {
        free(text);
        return "";
    }
    return s->text[s->texts++] = text;
}

void stage_release(struct stage *s)
{
    for (size_t i = 0; i < s->texts; i++)
        free(s->text[i]);
    free(s->text);
    stops_release(&s->stops);
    job_release(&s->j);
}

struct command *stage_tool(struct stage *s, const char *name)
{
    struct command *c = pipes_add(&s->p, name);

    command_add(c, "-q", "--progress", "never", "--threads", s->threads, NULL);
    return c;
}

/* Where the run was planned on the CPU, a GPU of this machine is not used.  Parts take
 * turns on the GPUs that a machine, or Slurm, lets them see. */
static void add_device(struct stage *s, struct command *c)
{
    bool cpu = s->j.method == METHOD_GPTQ && !*s->j.gpu;
    const char *device = cpu ? "cpu" : s->j.device;

    if (s->stop < s->stops.n &&
        (!strcmp(device, "auto") || !strcmp(device, "cuda")))
        device = stage_text(s, "%s:%%%" PRId64, device, s->number);
    command_add(c, "--device", device, NULL);
    if (s->j.gpu_memory)
        command_add(c, "--gpu-memory", s->memory, NULL);
}

struct command *stage_device_tool(struct stage *s, const char *name)
{
    struct command *c = stage_tool(s, name);

    add_device(s, c);
    if (*s->j.gpu)
        command_add(c, "--expect-device", s->j.gpu, NULL);
    return c;
}

struct command *stage_calib(struct stage *s)
{
    struct command *c = stage_device_tool(s, "forge-calib");

    if (s->kv_b)
        command_add(c, "--kv-b", NULL);
    return c;
}

void stage_lend(struct stage *s, struct command *c)
{
    if (!*s->ledger)
        return;
    command_add(c, "--loans", s->ledger, NULL);
    c->lends = true;
}

static void add_words(struct command *c, const struct job_words *w)
{
    for (int i = 0; i < w->n; i++)
        command_add(c, w->text[i], NULL);
}

void stage_choice(struct stage *s, struct command *c)
{
    for (int i = 0; i < s->j.only.n; i++)
        command_add(c, "--modules", s->j.only.item[i], NULL);
    for (int i = 0; i < s->j.skip.n; i++)
        command_add(c, "--skip", s->j.skip.item[i], NULL);
}

struct command *stage_weights(struct stage *s)
{
    struct command *c = stage_tool(s, "forge-weights");

    stage_choice(s, c);
    return c;
}

struct command *stage_hessian(struct stage *s)
{
    struct command *c = stage_device_tool(s, "forge-hessian");

    command_add(c, "--blend", number_word(s->counts[0], s->j.blend), NULL);
    return c;
}

int stage_gradients(struct stage *s, struct command **gradient,
                    struct command **hessian, struct err *e)
{
    if (pipes_ledger(&s->p, s->ledger, e) < 0)
        return e->code;
    *gradient = stage_device_tool(s, "forge-gradient");
    stage_lend(s, *gradient);
    *hessian = stage_hessian(s);
    stage_lend(s, *hessian);
    return 0;
}

const char *stage_weights_path(struct stage *s)
{
    return stage_text(s, "%s/weights.fts", s->C);
}

void stage_weigh(struct stage *s, struct command *c)
{
    if (job_weighs(&s->j))
        command_add(c, "--weights", stage_weights_path(s), NULL);
}

struct command *stage_grid(struct stage *s)
{
    struct command *c = stage_tool(s, "forge-grid");

    add_device(s, c);
    add_words(c, &s->grid);
    for (int i = 0; i < s->j.grids.n; i++)
        command_add(c, "--grid", s->j.grids.item[i], NULL);
    return c;
}

struct command *stage_round_tool(struct stage *s)
{
    struct command *c = stage_tool(s, "forge-pack");

    add_device(s, c);
    command_add(c, "--rtn", "--group", number_word(s->counts[0], s->j.group),
                s->j.symmetric ? "--symmetric" : "--asymmetric",
                "--scale-dtype", s->j.bf16_scales ? "bf16" : "f16", NULL);
    return c;
}

int stage_solve_tool(struct stage *s, struct command **c, struct err *e)
{
    if (pipes_report(&s->p, s->report, e) < 0)
        return e->code;
    *c = stage_device_tool(s, "forge-solve");
    (*c)->writes_report = true;
    add_words(*c, &s->solve);
    if (s->j.fisher)
        command_add(*c, "--fisher", stage_path(s->path[0], s->C, "fisher.fts"),
                    NULL);
    command_add(*c, "--key", s->j.skey, "--report", s->report, NULL);
    return 0;
}

int stage_ring(struct stage *s, struct err *e)
{
    s->p.loop = true;
    return pipes_ledger(&s->p, s->ledger, e);
}

static void split(struct stage *s, const char *key, const char *report,
                  const char *codes)
{
    struct command *c = stage_tool(s, "forge-split");

    stage_lend(s, c);
    c->feeds = *s->along;
    if (c->feeds)
        command_add(c, "--along", s->along, NULL);
    command_add(c, "--key", key, "--inputs-of", ".", NULL);
    if (report)
        command_add(c, "--report", report, NULL);
    command_add(c, codes, NULL);
}

void stage_split(struct stage *s)
{
    split(s, s->j.skey, stage_path(s->path[1], s->S, "report-%.jsonl"),
          stage_path(s->path[2], s->S, "codes-%.fts"));
}

void stage_split_tuned(struct stage *s)
{
    split(s, s->j.ukey, NULL, stage_path(s->path[2], s->U, "codes-%.fts"));
}

void stage_share_of(struct stage *s, struct command *c)
{
    command_add(c, "--share", number_word(s->counts[1], s->number), "--shares",
                number_word(s->counts[2], s->stops.stop[s->stop].shares), NULL);
}

int stage_ring_end(struct stage *s, const char *codes, struct err *e)
{
    struct command *c = stage_weights(s);

    stage_lend(s, c);
    if (codes)
        stage_share_of(s, c);
    command_add(c, "--join", s->j.model, NULL);
    stage_lend(s, stage_grid(s));
    if (stage_solve_tool(s, &c, e) < 0)
        return e->code;
    stage_lend(s, c);
    if (codes)
        split(s, s->j.skey, NULL, codes);
    else
        stage_split(s);
    return 0;
}

static int read_through(const char *path, struct err *e)
{
    struct stream_reader *r;
    struct frame f;
    int rc = stream_open(&r, path, NULL, e);

    if (rc)
        return rc;
    while ((rc = stream_next(r, &f, e)) > 0)
        ;
    stream_close(r);
    return rc;
}

int stage_checkpoint(const char *dir, struct err *e)
{
    struct err found;
    uint64_t tensors;
    int rc = digests_hold(dir, &tensors, &found);

    return rc ? err_set(e, rc,
                        "%s: remove this checkpoint from the work directory, "
                        "and the same command makes it again",
                        found.msg) :
                0;
}

/* Read a file of the work directory, or with a % that of each layer, as far as they are
 * there; E_DATA: one is damaged. */
static int read_word(const struct stage *s, const char *word, struct err *e)
{
    char path[PATH_MAX];
    size_t n = strlen(word);
    bool all = strchr(word, '%');

    if (*word == '/' || n < 5 || n >= PATH_ROOM || strcmp(word + n - 4, ".fts"))
        return 0;
    for (int64_t i = 0; i < (all ? s->j.layers : 1); i++) {
        if (all)
            layer_path(word, i, path);
        else
            strcpy(path, word);
        if (!access(path, R_OK) && read_through(path, e) == E_DATA)
            return E_DATA;
    }
    return 0;
}

int stage_damaged(const struct stage *s, int rc, struct err *e)
{
    char tool[WORD];
    struct err found;

    snprintf(tool, sizeof(tool), "%.*s", (int)strcspn(e->msg, ":"), e->msg);
    for (int i = 0; rc == E_DATA && i < s->p.n; i++) {
        const struct command *c = &s->p.command[i];
        int bad = c->before ? read_word(s, c->before, &found) : 0;

        for (int k = 1; k < c->argc && !bad; k++)
            bad = read_word(s, c->argv[k], &found);
        if (bad)
            return err_set(e, E_DATA,
                           "%s: %s: remove it from the work directory, and the "
                           "same command makes it again",
                           tool, found.msg);
    }
    return rc;
}
