/* stage_parts.c - see stage_parts.h. */
#include "forge/stage_parts.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arch/tensor_name.h"
#include "common/io/file.h"
#include "forge/stop_rows.h"

/* Where states are on scratch, those that enter every so many layers are in the
 * work directory. */
enum { PUBLISH_LAYERS = 8, REPORT_MAX = 1 << 28 };

/* ---- names ---- */

static const char *moments_path(struct stage *s, size_t stop, int64_t part)
{
    char name[STOP_FILE];

    return stage_text(
        s, "%s/%s", s->S,
        stop_file_name(&s->stops.stop[stop], STOP_MOMENTS, part, name));
}

static const char *share_path(struct stage *s, size_t stop, int64_t share)
{
    char name[STOP_FILE];

    return stage_text(
        s, "%s/%s", s->S,
        stop_file_name(&s->stops.stop[stop], STOP_CODES, share, name));
}

/* Whether the states of this stop are in the work directory in any case. */
static bool published(const struct stage *s, size_t stop)
{
    const struct stop *p = &s->stops.stop[stop];

    return !*s->j.scratch ||
           (!(p->layer % PUBLISH_LAYERS) && (!stop || p[-1].layer != p->layer));
}

static const char *scratch_dir(struct stage *s)
{
    return *s->j.scratch ?
               stage_text(s, "%s/forge-%s", s->j.scratch, s->j.skey) :
               s->S;
}

static const char *states_path(struct stage *s, size_t stop)
{
    char name[STOP_FILE];

    return stage_text(
        s, "%s/%s", published(s, stop) ? s->S : scratch_dir(s),
        stop_file_name(&s->stops.stop[stop], STOP_STATES, s->number, name));
}

/* E_TEMP: path is not there, or cannot be seen yet. */
static int want(const char *path, struct err *e)
{
    return access(path, R_OK) ? err_set(e, E_TEMP, "'%s':", path) : 0;
}

/* ---- moments ---- */

/* Make the directory of states, which belongs to this run, and let temporary files
 * be there. */
static int open_scratch(struct stage *s, struct err *e)
{
    const char *dir = scratch_dir(s);

    if (!*s->j.scratch)
        return 0;
    if (mkdir(dir, 0777) && errno != EEXIST)
        return err_set(e, err_open_code(errno) == E_NOINPUT ? E_CREATE : E_IO,
                       "--scratch: '%s' cannot be created:", dir);
    return setenv("TMPDIR", dir, 1) ? err_set(e, E_TEMP, "out of memory") : 0;
}

/* The last stop before this one whose states are there; s->stop: none is. */
static size_t states_before(struct stage *s)
{
    for (size_t i = s->stop; i-- > 0;)
        if (!access(states_path(s, i), R_OK))
            return i;
    return s->stop;
}

/* Where the run begins: behind the states of an earlier stop, or with the
 * tokens. */
static const char *add_input(struct stage *s, struct command *c)
{
    size_t from = states_before(s);

    if (from < s->stop) {
        command_add(c, "--expect-key", s->j.skey, NULL);
        return s->states = states_path(s, from);
    }
    command_add(c, "--expect-key", s->j.tkey, "--part",
                number_word(s->counts[1], s->number), "--parts",
                number_word(s->counts[2], s->j.parts), NULL);
    return stage_path(s->path[1], s->T, "tokens.fts");
}

/* The codes of the layers before, and of the stops of this layer before. */
static int add_codes(struct stage *s, struct command *c, struct err *e)
{
    const struct stop *here = &s->stops.stop[s->stop];

    if (here->layer)
        command_add(c, "--codes", stage_path(s->path[0], s->S, "codes-%.fts"),
                    NULL);
    for (int64_t i = 0; i < here->layer; i++)
        if (want(stage_layer_path(s->path[2], s->S, "codes", i), e) < 0)
            return e->code;
    for (size_t i = s->stop; i-- > 0 && s->stops.stop[i].layer == here->layer;)
        for (int64_t k = 0; k < s->stops.stop[i].shares; k++) {
            const char *path = share_path(s, i, k);

            if (want(path, e) < 0)
                return e->code;
            command_add(c, "--codes", path, NULL);
        }
    return 0;
}

int stage_moments(struct stage *s, struct err *e)
{
    const struct stop *here = &s->stops.stop[s->stop];
    bool last = s->stop + 1 == s->stops.n;
    struct command *c = stage_calib(s);
    const char *input;

    if (open_scratch(s, e) < 0)
        return e->code;
    command_add(c, "--until",
                stage_text(s, "%" PRId64 ".%s", here->layer, here->point),
                "--key", s->j.skey, NULL);
    if (s->j.propagate != PROPAGATE_ORIGINAL)
        command_add(c, "--propagate", s->propagate, NULL);
    if (!last)
        command_add(c, "--hidden", states_path(s, s->stop), NULL);
    input = add_input(s, c);
    if ((s->j.propagate != PROPAGATE_ORIGINAL && add_codes(s, c, e) < 0) ||
        want(input, e) < 0)
        return e->code;
    command_add(c, s->j.model, input, NULL);
    command_add(stage_hessian(s), "--partial", "--key", s->j.skey, "-o",
                moments_path(s, s->stop, s->number), NULL);
    return 0;
}

int stage_moments_lost(const struct stage *s, int rc, struct err *e)
{
    if (rc == E_NOINPUT && s->states && access(s->states, F_OK))
        e->code = rc = E_TEMP;
    return rc;
}

/* The states of earlier stops: what is here serves from now on, and behind a lost
 * scratch the last in the work directory. */
void stage_moments_tidy(struct stage *s)
{
    bool last = s->stop + 1 == s->stops.n;
    bool here = !last && !access(states_path(s, s->stop), F_OK);
    size_t from = s->stop, keep;

    if (!last && !here) /* in a mixture those at mlp_in serve on */
        from = states_before(s);
    for (keep = from; keep > 0 && !published(s, keep); keep--)
        ;
    if (last)
        from = keep = s->stop;
    for (size_t i = 0; i < from; i++)
        if (i != keep)
            unlink(states_path(s, i));
    if (last && *s->j.scratch)
        rmdir(scratch_dir(s));
}

/* ---- shares, layers ---- */

int stage_share(struct stage *s, struct err *e)
{
    const struct stop *here = &s->stops.stop[s->stop];
    struct command *c = stage_hessian(s);
    const char *rows;
    char *list;
    bool lost;

    command_add(c, "--expect-key", s->j.skey, NULL);
    if (here->shares > 1) {
        if (stop_rows(here, &s->j, s->number, &list, e) < 0)
            return e->code;
        rows = stage_text(s, "%s", list);
        lost = strcmp(rows, list) != 0;
        free(list);
        if (lost)
            return err_set(e, E_TEMP, "out of memory");
        command_add(c, "--rows", rows, "--share",
                    number_word(s->counts[1], s->number), "--shares",
                    number_word(s->counts[2], here->shares), NULL);
    }
    for (int64_t i = 0; i < s->j.parts; i++) {
        const char *path = moments_path(s, s->stop, i);

        if (want(path, e) < 0)
            return e->code;
        command_add(c, path, NULL);
    }
    command_add(stage_weights(s), "--join", s->j.model, NULL);
    stage_grid(s);
    if (stage_solve_tool(s, &c, e) < 0)
        return e->code;
    command_add(c, "-o", share_path(s, s->stop, s->number), NULL);
    return 0;
}

/* The first stop of the layer or behind it. */
static size_t first_stop(const struct stage *s, int64_t layer)
{
    size_t i = 0;

    while (i < s->stops.n && s->stops.stop[i].layer < layer)
        i++;
    return i;
}

int stage_layer(struct stage *s, struct err *e)
{
    struct command *c = pipes_add(&s->p, "cat");

    for (size_t i = first_stop(s, s->layer);
         i < s->stops.n && s->stops.stop[i].layer == s->layer; i++)
        for (int64_t k = 0; k < s->stops.stop[i].shares; k++) {
            const char *path = share_path(s, i, k);

            if (want(path, e) < 0)
                return e->code;
            command_add(c, path, NULL);
        }
    stage_split(s);
    return 0;
}

/* ",MODULE,MODULE,...,": the linears of the layer whose rows several shares solved; "" if
 * there is no memory. */
static const char *divided(struct stage *s)
{
    const char *all = ",";
    char *list;
    struct err e;

    for (size_t i = first_stop(s, s->layer);
         i < s->stops.n && s->stops.stop[i].layer == s->layer; i++) {
        if (stop_rows(&s->stops.stop[i], &s->j, STOP_DIVIDED, &list, &e) < 0)
            return "";
        all = stage_text(s, "%s%s,", all, list);
        free(list);
    }
    return all;
}

/* Pass on what no share could report: of linears whose rows several of them solved. */
static void report_rows(struct stage *s)
{
    static const char begin[] = "{\"module\":\"";
    const char *all = divided(s);
    char path[PATH_ROOM], name[TENSOR_NAME_MAX], *text, *line, *end;
    size_t len;
    struct err e;

    snprintf(path, sizeof(path), "%s/report-%" PRId64 ".jsonl", s->S, s->layer);
    if (file_slurp(&text, &len, path, REPORT_MAX, &e) < 0)
        return;
    for (line = text; (end = strchr(line, '\n')); line = end + 1) {
        const char *module = line + sizeof(begin) - 1;

        if (strncmp(line, begin, sizeof(begin) - 1) != 0)
            continue;
        snprintf(name, sizeof(name), ",%.*s,", (int)strcspn(module, "\""),
                 module);
        if (strstr(all, name))
            s->p.line(s->p.ctx, line, (size_t)(end - line));
    }
    free(text);
}

/* Of other numbers of shares, too: an earlier command may have run elsewhere. */
static void remove_moments_and_shares(struct stage *s, size_t stop)
{
    const struct stop *p = &s->stops.stop[stop];
    glob_t found;

    if (!glob(stage_text(s, "%s/codes-%" PRId64 "-%s.share-*.fts", s->S,
                         p->layer, p->point),
              0, NULL, &found)) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            unlink(found.gl_pathv[i]);
        globfree(&found);
    }
    for (int64_t k = 0; k < s->j.parts; k++)
        unlink(moments_path(s, stop, k));
}

void stage_layer_tidy(struct stage *s)
{
    report_rows(s);
    for (size_t i = first_stop(s, s->layer);
         i < s->stops.n && s->stops.stop[i].layer == s->layer; i++)
        remove_moments_and_shares(s, i);
}

void stage_parts_tidy(struct stage *s)
{
    for (size_t i = 0; i < s->stops.n; i++) {
        remove_moments_and_shares(s, i);
        for (s->number = 0; s->number < s->j.parts; s->number++)
            unlink(states_path(s, i));
    }
    if (s->stops.n && *s->j.scratch)
        rmdir(scratch_dir(s));
}
