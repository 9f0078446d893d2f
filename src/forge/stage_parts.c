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

static const char *stop_path(struct stage *s, size_t stop, enum stop_file which,
                             int64_t number)
{
    char name[STOP_FILE];

    return stage_text(
        s, "%s/%s", s->S,
        stop_file_name(&s->stops.stop[stop], which, number, name));
}

static const char *moments_path(struct stage *s, size_t stop, int64_t part)
{
    return stop_path(s, stop, STOP_MOMENTS, part);
}

static const char *share_path(struct stage *s, size_t stop, int64_t share)
{
    return stop_path(s, stop, STOP_CODES, share);
}

/* The moments that shares of a stop read: of each part, or merged in as many pieces. */
static enum stop_file moments_file(const struct stage *s, size_t stop)
{
    return s->stops.stop[stop].pieces ? STOP_MERGED : STOP_MOMENTS;
}

/* Whether the states of this stop are in the work directory in any case. */
static bool published(const struct stage *s, size_t stop)
{
    const struct stop *p = &s->stops.stop[stop];

    return !*s->j.scratch || stop_of_experts(p) ||
           (!(p->layer % PUBLISH_LAYERS) && (!stop || p[-1].layer != p->layer));
}

static const char *scratch_dir(struct stage *s)
{
    char name[SCRATCH_DIR];
    struct stat st;

    if (!*s->j.scratch)
        return s->S;
    return stat(".", &st) ? s->S :
                            stage_text(s, "%s/%s", s->j.scratch,
                                       job_scratch_dir(&s->j, st.st_ino, name));
}

static const char *states_path(struct stage *s, size_t stop)
{
    char name[STOP_FILE];

    return stage_text(
        s, "%s/%s", published(s, stop) ? s->S : scratch_dir(s),
        stop_file_name(&s->stops.stop[stop], STOP_STATES, s->number, name));
}

/* The states of part s->number; of experts' stops others read them, too. */
static void remove_states(struct stage *s, size_t stop)
{
    if (!stop_of_experts(&s->stops.stop[stop]))
        unlink(states_path(s, stop));
}

/* E_TEMP: path is not there, or cannot be seen yet.  E_DATA: cat(1) would pass on
 * nothing. */
static int want(const char *path, struct err *e)
{
    struct stat st;

    if (access(path, R_OK) || stat(path, &st))
        return err_set(e, E_TEMP, "'%s':", path);
    return st.st_size ?
               0 :
               err_set(e, E_DATA,
                       "'%s': is empty: remove it from the work "
                       "directory, and the same command makes it again",
                       path);
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

/* The outputs of the experts of that stop, if all shares have left them: there may have
 * been more or fewer shares than now.  Without them the experts run with their codes. */
static void add_outputs(struct stage *s, struct command *c, size_t stop)
{
    struct stop p = s->stops.stop[stop];
    char name[STOP_FILE];
    int64_t k = 0;

    for (p.shares = 1; p.shares <= s->j.parts && !k; p.shares += !k)
        for (; k < p.shares; k++)
            if (access(stage_text(s, "%s/%s", s->S,
                                  stop_file_name(&p, STOP_OUTPUTS, k, name)),
                       R_OK)) {
                k = 0;
                break;
            }
    for (int64_t i = 0; i < k; i++)
        command_add(c, "--outputs",
                    stage_text(s, "%s/%s", s->S,
                               stop_file_name(&p, STOP_OUTPUTS, i, name)),
                    NULL);
}

/* Where the run begins: behind the states of an earlier stop, or with the
 * tokens. */
static const char *add_input(struct stage *s, struct command *c)
{
    size_t from = states_before(s);

    command_add(c, "--part", number_word(s->counts[1], s->number), "--parts",
                number_word(s->counts[2], s->j.parts), NULL);
    if (from < s->stop) {
        if (stop_of_experts(&s->stops.stop[from]))
            add_outputs(s, c, from);
        command_add(c, "--expect-key", s->j.skey, NULL);
        return s->states = states_path(s, from);
    }
    command_add(c, "--expect-key", s->j.tkey, NULL);
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
    if (!last || stop_of_experts(here))
        command_add(c, "--hidden", states_path(s, s->stop), NULL);
    input = add_input(s, c);
    if ((s->j.propagate != PROPAGATE_ORIGINAL && add_codes(s, c, e) < 0) ||
        want(input, e) < 0 ||
        (job_weighs(&s->j) && want(stage_weights_path(s), e) < 0))
        return e->code;
    command_add(c, s->j.model, input, NULL);
    c = stage_hessian(s);
    stage_weigh(s, c);
    command_add(c, "--partial", "--key", s->j.skey, "-o",
                moments_path(s, s->stop, s->number), NULL);
    if (s->j.propagate != PROPAGATE_ORIGINAL)
        command_add(c, "--pieces", number_word(s->counts[3], s->j.parts), NULL);
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
            remove_states(s, i);
    if (last && *s->j.scratch)
        rmdir(scratch_dir(s));
}

/* ---- shares, layers ---- */

int stage_merge(struct stage *s, struct err *e)
{
    struct command *c = stage_hessian(s);

    command_add(c, "--expect-key", s->j.skey, "--key", s->j.skey, "--pieces",
                number_word(s->counts[3], s->j.parts), "--piece",
                number_word(s->counts[4], s->number), "-o",
                stop_path(s, s->stop, STOP_MERGED, s->number), NULL);
    for (int64_t i = 0; i < s->j.parts; i++) {
        const char *path = moments_path(s, s->stop, i);

        if (want(path, e) < 0)
            return e->code;
        command_add(c, path, NULL);
    }
    return 0;
}

/* Wait for a file of the parts, of each. */
static int want_parts(struct stage *s, size_t stop, enum stop_file which,
                      struct err *e)
{
    for (int64_t i = 0; i < s->j.parts; i++) {
        char name[STOP_FILE];

        if (want(stage_text(
                     s, "%s/%s", s->S,
                     stop_file_name(&s->stops.stop[stop], which, i, name)),
                 e) < 0)
            return e->code;
    }
    return 0;
}

/* A share of the experts: the loop for these alone.  Their Hessians are blended with
 * that of mlp_in, which is with the moments of that stop, or of this one. */
static int solve_experts(struct stage *s, struct err *e)
{
    const struct stop *here = &s->stops.stop[s->stop];
    size_t mlp_in = stops_find(&s->stops, here->layer, "mlp_in");
    size_t prior = mlp_in < s->stops.n ? mlp_in : s->stop;
    struct command *c = stage_calib(s);
    char name[STOP_FILE];

    if (stage_ring(s, e) < 0 ||
        want_parts(s, prior, moments_file(s, prior), e) < 0 ||
        want_parts(s, s->stop, STOP_STATES, e) < 0)
        return e->code;
    stage_lend(s, c);
    stage_share_of(s, c);
    command_add(c, "--feedback", "-", "--propagate", s->propagate,
                "--expect-key", s->j.skey, "--key", s->j.skey, NULL);
    if (here->layer + 1 < s->j.layers)
        command_add(
            c, "--outputs",
            stage_text(s, "%s/%s", s->S,
                       stop_file_name(here, STOP_OUTPUTS, s->number, name)),
            NULL);
    command_add(c, s->j.model, NULL);
    for (int64_t i = 0; i < s->j.parts; i++)
        command_add(c,
                    stage_text(s, "%s/%s", s->S,
                               stop_file_name(here, STOP_STATES, i, name)),
                    NULL);
    c = stage_hessian(s);
    command_add(c, "--parts", number_word(s->counts[3], s->j.parts), NULL);
    for (int64_t i = 0; s->j.blend && i < s->j.parts; i++)
        command_add(c, "--blend-with",
                    stop_path(s, prior, moments_file(s, prior), i), NULL);
    stage_lend(s, c);
    stop_file_name(here, STOP_CODES, s->number, name);
    return stage_ring_end(
        s, stage_text(s, "%s/codes-%%%s", s->S, strchr(name + 6, '-')), e);
}

int stage_share(struct stage *s, struct err *e)
{
    const struct stop *here = &s->stops.stop[s->stop];
    struct command *c;
    const char *rows;
    char *list;
    bool lost;

    if (stop_of_experts(here))
        return solve_experts(s, e);
    if (pipes_ledger(&s->p, s->ledger, e) < 0)
        return e->code;
    c = stage_hessian(s);
    stage_lend(s, c);
    command_add(c, "--expect-key", s->j.skey, NULL);
    if (here->shares > 1) {
        if (stop_rows(here, &s->j, s->number, &list, e) < 0)
            return e->code;
        rows = stage_text(s, "%s", list);
        lost = strcmp(rows, list) != 0;
        free(list);
        if (lost)
            return err_set(e, E_TEMP, "out of memory");
        command_add(c, "--rows", rows, NULL);
        stage_share_of(s, c);
    }
    for (int64_t i = 0; i < s->j.parts; i++) {
        const char *path = stop_path(s, s->stop, moments_file(s, s->stop), i);

        if (want(path, e) < 0)
            return e->code;
        command_add(c, path, NULL);
    }
    command_add(stage_weights(s), "--join", s->j.model, NULL);
    stage_lend(s, stage_grid(s));
    if (stage_solve_tool(s, &c, e) < 0)
        return e->code;
    stage_lend(s, c);
    command_add(c, "-o", share_path(s, s->stop, s->number), NULL);
    return 0;
}

int64_t stage_steps(const struct stage *s, stage_plan *plan)
{
    const struct stop *p = &s->stops.stop[s->stop];

    return s->stop >= s->stops.n ? 0 :
           plan == stage_share   ? p->shares :
           plan == stage_merge   ? p->pieces :
                                   s->j.parts;
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
static void remove_shares(struct stage *s, const char *what, size_t stop)
{
    const struct stop *p = &s->stops.stop[stop];
    glob_t found;

    if (glob(stage_text(s, "%s/%s-%" PRId64 "-%s.share-*.fts", s->S, what,
                        p->layer, p->point),
             0, NULL, &found))
        return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        unlink(found.gl_pathv[i]);
    globfree(&found);
}

static void remove_moments_and_shares(struct stage *s, size_t stop)
{
    remove_shares(s, "codes", stop);
    for (int64_t k = 0; k < s->j.parts; k++) {
        unlink(moments_path(s, stop, k));
        unlink(stop_path(s, stop, STOP_MERGED, k));
    }
}

/* What parts and shares of an experts' stop have left for the next stop's parts. */
static void remove_experts(struct stage *s, size_t stop)
{
    if (!stop_of_experts(&s->stops.stop[stop]))
        return;
    for (s->number = 0; s->number < s->j.parts; s->number++)
        unlink(states_path(s, stop));
    remove_shares(s, "outputs", stop); /* behind them: stage_moments_lost() */
}

/* All parts are behind the layer before. */
void stage_layer_tidy(struct stage *s)
{
    size_t first = first_stop(s, s->layer), i = first;

    report_rows(s);
    for (; i < s->stops.n && s->stops.stop[i].layer == s->layer; i++)
        remove_moments_and_shares(s, i);
    if (i > first && first)
        remove_experts(s, first - 1);
    if (i > first && i == s->stops.n)
        remove_experts(s, i - 1);
}

void stage_parts_tidy(struct stage *s)
{
    for (size_t i = 0; i < s->stops.n; i++) {
        remove_moments_and_shares(s, i);
        remove_experts(s, i);
        for (s->number = 0; s->number < s->j.parts; s->number++)
            unlink(states_path(s, i));
    }
    if (s->stops.n && *s->j.scratch)
        rmdir(scratch_dir(s));
}
