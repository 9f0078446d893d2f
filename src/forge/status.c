/* status.c - forge status and forge gc. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/cli/units.h"
#include "common/io/json.h"
#include "forge/command.h"
#include "forge/job.h"
#include "forge/stops.h"
#include "shard/outdir.h"
#include "work/place.h"
#include "work/records.h"

/* A layer of the run. */
struct row {
    bool calibrated, solved;
    size_t modules;
    double loss, loss_rtn, seconds;
};

/* A machine that has run steps of a run in parts. */
struct host {
    char name[64];
    int64_t steps;
    double seconds;
};

struct standing {
    const char *work;
    struct job j;
    const char *state; /* "running", "stopped", "complete" */
    struct row *row;   /* [layers] */
    bool gradients;    /* what effort best makes before the layers is there */
    int64_t done, layers_done;
    double percent, elapsed, to_go; /* seconds; to_go negative: not known */
    /* With parts: the stop that the run is at, and how many parts have written
     * moments there, how many pieces of them are merged, how many shares have
     * written codes; layer -1: none. */
    struct stop stop;
    int64_t moments, merged, shares;
    struct host *host; /* [hosts] */
    size_t hosts;
};

static bool is_there(const struct standing *s, const char *dir,
                     const char *name, int64_t layer)
{
    char path[PATH_MAX + 128];

    snprintf(path, sizeof(path), "%s/%s/%s-%lld.fts", s->work, dir, name,
             (long long)layer);
    return !access(path, F_OK);
}

/* F, behind which the weights of tokens are whole. */
static bool has_gradients(const struct standing *s)
{
    char C[STAGE_DIR], path[PATH_MAX + 128];

    snprintf(path, sizeof(path), "%s/%s/fisher.fts", s->work,
             job_calib_dir(&s->j, C));
    return !access(path, F_OK);
}

static int read_row(struct standing *s, int64_t layer, struct err *e)
{
    struct row *w = &s->row[layer];
    struct records all = { 0 };
    char C[STAGE_DIR], S[STAGE_DIR], path[PATH_MAX + 128];
    int rc;

    job_calib_dir(&s->j, C);
    job_solve_dir(&s->j, S);
    w->solved = is_there(s, S, "codes", layer);
    w->calibrated = s->j.propagate == PROPAGATE_ORIGINAL ?
                        is_there(s, C, "hessian", layer) :
                        w->solved;
    if (!w->solved)
        return 0;
    snprintf(path, sizeof(path), "%s/%s/report-%lld.jsonl", s->work, S,
             (long long)layer);
    rc = records_read(&all, RECORD_MODULE, path, e);
    for (size_t i = 0; i < all.modules && !rc; i++) {
        w->loss += fmax(all.module[i].loss, 0);
        w->loss_rtn += fmax(all.module[i].loss_rtn, 0);
        w->seconds += fmax(all.module[i].seconds, 0);
    }
    w->modules = all.modules;
    s->done += (int64_t)all.modules;
    s->layers_done++;
    records_release(&all);
    return rc;
}

/* --search absmax has no files of layers: they are all in OUT. */
static int read_packed_rows(struct standing *s, struct err *e)
{
    const struct module_choice choice = job_choice(&s->j);
    struct model_config c;

    if (job_config(&s->j, &c, e) < 0)
        return e->code;
    for (int64_t i = 0; i < s->j.layers && i < c.n_layers; i++) {
        s->row[i].solved = true;
        s->row[i].modules = (size_t)module_chosen_count(&choice, &c, i);
        s->done += (int64_t)s->row[i].modules;
        s->layers_done++;
    }
    model_config_release(&c);
    return 0;
}

static bool has(const struct standing *s, enum stop_file which, int64_t number)
{
    char S[STAGE_DIR], name[STOP_FILE], path[PATH_MAX + 128];

    snprintf(path, sizeof(path), "%s/%s/%s", s->work, job_solve_dir(&s->j, S),
             stop_file_name(&s->stop, which, number, name));
    return !access(path, F_OK);
}

/* The first stop of which a share is missing. */
static int find_stop(struct standing *s, struct err *e)
{
    struct stops all = { 0 };

    s->stop.layer = -1;
    if (s->j.parts > 1 && stops_list(&all, &s->j, e) < 0)
        return e->code;
    for (size_t i = 0; i < all.n && s->stop.layer < 0; i++) {
        s->stop = all.stop[i];
        s->moments = s->merged = s->shares = 0;
        for (int64_t k = 0; k < s->stop.shares; k++)
            s->shares += has(s, STOP_CODES, k);
        for (int64_t k = 0; k < s->j.parts; k++)
            s->moments += has(s, STOP_MOMENTS, k);
        for (int64_t k = 0; k < s->stop.pieces; k++)
            s->merged += has(s, STOP_MERGED, k);
        if (s->row[s->stop.layer].solved || s->shares == s->stop.shares)
            s->stop.layer = -1;
    }
    if (s->j.jobs == 1 && !s->moments && !s->shares)
        s->stop.layer = -1; /* one pipe, without stops */
    stops_release(&all);
    return 0;
}

static int add_step(struct standing *s, const struct step *t, struct err *e)
{
    size_t i = 0;

    while (i < s->hosts && strcmp(s->host[i].name, t->host) != 0)
        i++;
    if (i == s->hosts) {
        if (mem_grow(&s->host, (i + 1) * sizeof(*s->host), "status", e) < 0)
            return e->code;
        s->host[s->hosts++] = (struct host){ .steps = 0 };
        strcpy(s->host[i].name, t->host);
    }
    s->host[i].steps++;
    s->host[i].seconds += t->seconds;
    return 0;
}

/* Of a run in parts: which machines have done what. */
static int find_hosts(struct standing *s, struct err *e)
{
    struct records all = { 0 };
    char S[STAGE_DIR], path[PATH_MAX + 128];
    int rc = 0;

    snprintf(path, sizeof(path), "%s/%s/stages.jsonl", s->work,
             job_solve_dir(&s->j, S));
    if (s->j.parts == 1 || access(path, F_OK))
        return 0;
    rc = records_read(&all, RECORD_STEP, path, e);
    for (size_t i = 0; i < all.steps && rc >= 0; i++)
        if (*all.step[i].host)
            rc = add_step(s, &all.step[i], e);
    records_release(&all);
    return rc;
}

/* Time to go: extrapolated from what the last call has done; before its first
 * module, from its estimate. */
static void estimate(struct standing *s, bool running)
{
    int64_t fresh = s->done - s->j.before, left = s->j.modules - s->done;

    s->percent =
        s->j.modules > 0 ? 100 * (double)s->done / (double)s->j.modules : 0;
    s->to_go = -1;
    if (!strcmp(s->state, "complete"))
        s->to_go = 0;
    if (!running)
        return;
    s->elapsed = fmax(difftime(time(NULL), (time_t)s->j.started), 0);
    if (fresh > 0)
        s->to_go = s->elapsed * (double)left / (double)fresh;
    else if (s->j.seconds > 0)
        s->to_go = fmax(s->j.seconds - s->elapsed, 0);
}

static int look(struct standing *s, struct err *e)
{
    struct place p;
    bool running;

    if (place_visit(&p, s->work, &running, e) < 0)
        return e->code;
    place_close(&p);
    if (job_read(&s->j, s->work, e) < 0)
        return e->code;
    s->state = running                 ? "running" :
               !access(s->j.out, F_OK) ? "complete" :
                                         "stopped";
    s->row = mem_zero((size_t)s->j.layers, sizeof(*s->row), "status", e);
    if (!s->row)
        return e->code;
    s->gradients = has_gradients(s);
    if (s->j.search == SEARCH_ABSMAX && !strcmp(s->state, "complete") &&
        read_packed_rows(s, e) < 0)
        return e->code;
    for (int64_t i = 0; i < s->j.layers && s->j.search != SEARCH_ABSMAX; i++)
        if (read_row(s, i, e) < 0)
            return e->code;
    if (find_stop(s, e) < 0 || find_hosts(s, e) < 0)
        return e->code;
    estimate(s, running);
    return 0;
}

static const char *method_of(const struct job *j)
{
    return j->method == METHOD_RTN ? "rtn" : "gptq";
}

static void print_stop(const struct standing *s)
{
    printf("layer %lld waits at %s: %lld of %lld parts have moments, ",
           (long long)s->stop.layer, s->stop.point, (long long)s->moments,
           (long long)s->j.parts);
    if (s->stop.pieces)
        printf("%lld of %lld pieces are merged, ", (long long)s->merged,
               (long long)s->stop.pieces);
    printf("%lld of %lld shares codes\n", (long long)s->shares,
           (long long)s->stop.shares);
}

static void print_text(const struct standing *s)
{
    char span[UNIT_TEXT];

    printf("%s -> %s: layout %s, method %s, group %lld, %s, %s\n", s->j.model,
           s->j.out, job_layout_name(&s->j), method_of(&s->j),
           (long long)job_group_word(&s->j),
           s->j.symmetric ? "symmetric" : "asymmetric", s->state);
    printf("%.0f %% done: %lld of %lld layers, %lld of %lld modules%s%s\n",
           s->percent, (long long)s->layers_done, (long long)s->j.layers,
           (long long)s->done, (long long)s->j.modules,
           s->to_go > 0 ? "; to go about " : "",
           s->to_go > 0 ? span_text(span, s->to_go) : "");
    if (s->j.fisher)
        printf("gradients%s: %s\n",
               job_weighs(&s->j) ? ", of all tokens for their weights" : "",
               s->gradients ? "done" : "to come, before the layers");
    if (s->stop.layer >= 0)
        print_stop(s);
    for (size_t i = 0; i < s->hosts; i++)
        printf("%s%s: %lld steps, %s%s", i ? "; " : "", s->host[i].name,
               (long long)s->host[i].steps, span_text(span, s->host[i].seconds),
               i + 1 == s->hosts ? "\n" : "");
    printf("%-6s %-8s %-7s %8s %11s %9s\n", "layer", "calib", "solved",
           "modules", "loss/rtn", "seconds");
    for (int64_t i = 0; i < s->j.layers; i++) {
        const struct row *w = &s->row[i];
        const char *calib = s->j.method == METHOD_RTN ? "none" :
                            w->calibrated             ? "yes" :
                                                        "-";

        printf("%-6lld %-8s %-7s", (long long)i, calib,
               w->solved ? "yes" : "-");
        if (w->solved && w->loss_rtn > 0)
            printf(" %8zu %11.3f %9.2f", w->modules, w->loss / w->loss_rtn,
                   w->seconds);
        else if (w->solved)
            printf(" %8zu %11s %9.2f", w->modules, "-", w->seconds);
        putchar('\n');
    }
}

static void json_row(struct json_writer *w, const struct row *r, int64_t layer)
{
    jw_begin(w, '{');
    jw_key(w, "layer"), jw_int(w, layer);
    jw_key(w, "calibrated"), jw_bool(w, r->calibrated);
    jw_key(w, "solved"), jw_bool(w, r->solved);
    if (r->solved) {
        jw_key(w, "modules"), jw_int(w, (int64_t)r->modules);
        jw_key(w, "loss"), jw_number(w, r->loss);
        jw_key(w, "loss_rtn"), jw_number(w, r->loss_rtn);
        jw_key(w, "seconds"), jw_number(w, r->seconds);
    }
    jw_end(w, '}');
}

static void json_stop(struct json_writer *w, const struct standing *s)
{
    jw_key(w, "stop"), jw_begin(w, '{');
    jw_key(w, "layer"), jw_int(w, s->stop.layer);
    jw_key(w, "point"), jw_string(w, s->stop.point);
    jw_key(w, "parts"), jw_int(w, s->j.parts);
    jw_key(w, "moments"), jw_int(w, s->moments);
    jw_key(w, "pieces"), jw_int(w, s->stop.pieces);
    jw_key(w, "merged"), jw_int(w, s->merged);
    jw_key(w, "shares"), jw_int(w, s->stop.shares);
    jw_key(w, "solved"), jw_int(w, s->shares);
    jw_end(w, '}');
}

static void json_hosts(struct json_writer *w, const struct standing *s)
{
    jw_key(w, "hosts"), jw_begin(w, '[');
    for (size_t i = 0; i < s->hosts; i++) {
        jw_begin(w, '{');
        jw_key(w, "host"), jw_string(w, s->host[i].name);
        jw_key(w, "steps"), jw_int(w, s->host[i].steps);
        jw_key(w, "seconds"), jw_number(w, s->host[i].seconds);
        jw_end(w, '}');
    }
    jw_end(w, ']');
}

static int print_json(const struct standing *s, struct err *e)
{
    struct json_writer w;
    int rc = 0;

    jw_init(&w, 0);
    jw_begin(&w, '{');
    jw_key(&w, "model"), jw_string(&w, s->j.model);
    jw_key(&w, "out"), jw_string(&w, s->j.out);
    jw_key(&w, "layout"), jw_string(&w, job_layout_name(&s->j));
    jw_key(&w, "method"), jw_string(&w, method_of(&s->j));
    jw_key(&w, "group"), jw_int(&w, job_group_word(&s->j));
    jw_key(&w, "symmetric"), jw_bool(&w, s->j.symmetric);
    jw_key(&w, "state"), jw_string(&w, s->state);
    jw_key(&w, "percent"), jw_number(&w, floor(s->percent * 10) / 10);
    jw_key(&w, "done"), jw_int(&w, s->done);
    jw_key(&w, "total"), jw_int(&w, s->j.modules);
    jw_key(&w, "layers_done"), jw_int(&w, s->layers_done);
    jw_key(&w, "elapsed"), jw_number(&w, s->elapsed);
    jw_key(&w, "eta");
    if (s->to_go >= 0)
        jw_number(&w, floor(s->to_go));
    else
        jw_null(&w);
    if (s->stop.layer >= 0)
        json_stop(&w, s);
    if (s->hosts)
        json_hosts(&w, s);
    if (s->j.fisher)
        jw_key(&w, "gradients"), jw_bool(&w, s->gradients);
    jw_key(&w, "layers"), jw_begin(&w, '[');
    for (int64_t i = 0; i < s->j.layers; i++)
        json_row(&w, &s->row[i], i);
    jw_end(&w, ']');
    jw_end(&w, '}');
    if (w.failed)
        rc = err_set(e, E_TEMP, "status: out of memory");
    else
        puts(w.text);
    free(w.text);
    return rc;
}

static int flushed(struct err *e)
{
    return flush_stdout(e);
}

int command_status(int argc, char **argv, struct err *e)
{
    struct standing *s = mem_zero(1, sizeof(*s), "status", e);
    int json = 0, rc;
    const struct opt table[] = {
        { OPT_FLAG, 0, "json", NULL, "print one JSON object", &json, 0, 0,
          true },
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i = opt_parse(argc, argv, "status [--json] WORK",
                      "Say how far the run in a work directory is.", table);

    if (!s)
        return e->code;
    s->work = argv[i];
    rc = argc - i != 1 ? err_set(e, E_USAGE, "want WORK (try --help)") :
                         look(s, e);
    if (!rc && json)
        rc = print_json(s, e);
    else if (!rc)
        print_text(s);
    if (!rc)
        rc = flushed(e);
    job_release(&s->j);
    free(s->row);
    free(s->host);
    free(s);
    return rc;
}

/* Remove the results of settings other than the last run's.  Returns the
 * number, or an E_*.  *stays: as place_forget() has it. */
static int64_t forget(const struct place *p, struct err *stays, struct err *e)
{
    char T[STAGE_DIR], C[STAGE_DIR], S[STAGE_DIR], U[STAGE_DIR], P[STAGE_DIR];
    const char *kept[7] = { NULL }, *name;
    struct job j;
    int64_t n;

    if (job_read(&j, p->dir, e) < 0)
        return e->code;
    name = strrchr(j.model, '/');
    kept[0] = job_tokens_dir(&j, T);
    kept[1] = job_calib_dir(&j, C);
    kept[2] = job_solve_dir(&j, S);
    kept[3] = job_packed_dir(&j, P);
    kept[4] = job_codes_dir(&j, U);
    kept[5] = name ? name + 1 : NULL; /* the pruned model, if it is in WORK */
    n = place_forget(p, kept, stays);
    job_release(&j);
    return n;
}

/* Whether a temporary work directory is not needed any more: OUT exists, or the
 * run has not begun. */
static bool over(const struct place *p)
{
    struct stat st;
    struct job j;
    struct err e;
    bool made;

    if (!p->temporary)
        return false;
    if (job_read(&j, p->dir, &e) < 0)
        return e.code == E_NOINPUT;
    made = !stat(j.out, &st);
    job_release(&j);
    return made;
}

/* Remove an empty "OUT.work" beside an existing OUT: an interrupted
 * place_remove() has removed the mark, and not yet the directory. */
static bool remove_empty(const char *work)
{
    size_t n = strlen(work);
    char out[PATH_MAX];
    struct stat st;

    while (n > 1 && work[n - 1] == '/')
        n--;
    if (n <= 5 || n >= sizeof(out) || strncmp(work + n - 5, ".work", 5) != 0)
        return false;
    snprintf(out, sizeof(out), "%.*s", (int)(n - 5), work);
    return !stat(out, &st) && !rmdir(work);
}

/* Remove what a killed run has left beside OUT; returns the number. */
static int64_t collect_out(const struct place *p)
{
    struct job j;
    struct err e;
    int64_t n;

    if (job_read(&j, p->dir, &e) < 0)
        return 0;
    n = outdir_collect(j.out);
    job_release(&j);
    return n;
}

static bool has_codes(const struct place *p, const struct job *j)
{
    char S[STAGE_DIR], path[PATH_MAX + 128];
    int64_t i = 0;

    job_solve_dir(j, S);
    for (; i < j->layers; i++) {
        snprintf(path, sizeof(path), "%s/%s/codes-%lld.fts", p->dir, S,
                 (long long)i);
        if (access(path, F_OK))
            break;
    }
    return i == j->layers;
}

/* Remove what a run that was killed behind its last layer has left to go on from, here and
 * on scratch; returns the number. */
static int64_t collect_passing(const struct place *p)
{
    char S[SCRATCH_DIR], path[PATH_MAX + 128];
    struct stat st;
    struct job j;
    struct err e;
    int64_t n = 0;

    if (job_read(&j, p->dir, &e) < 0)
        return 0;
    if (has_codes(p, &j)) {
        snprintf(path, sizeof(path), "%s/%s", p->dir, job_solve_dir(&j, S));
        n = place_collect_passing(path);
        if (*j.scratch && !stat(p->dir, &st)) {
            snprintf(path, sizeof(path), "%s/%s", j.scratch,
                     job_scratch_dir(&j, st.st_ino, S));
            n += place_collect_passing(path);
            rmdir(path);
        }
    }
    job_release(&j);
    return n;
}

/* *n: the number of files or directories removed. */
static int collect(const char *work, bool settings, int64_t *n, struct err *e)
{
    struct place p;
    struct err stays = { 0 };
    bool running;
    int64_t more = 0;

    *n = 1;
    if (place_visit(&p, work, &running, e) < 0)
        return remove_empty(work) ? 0 : e->code;
    *n = place_collect(&p, !running, &stays);
    if (!running)
        *n += collect_out(&p) + collect_passing(&p);
    if (settings)
        more = running ?
                   err_set(e, E_TEMP, "'%s': another forge works there", work) :
                   forget(&p, &stays, e);
    if (more >= 0 && !stays.code && !running && over(&p)) {
        place_remove(&p);
        more++;
    }
    place_close(&p);
    *n += more;
    if (more >= 0 && stays.code) {
        *e = stays;
        more = -1;
    }
    return more < 0 ? e->code : 0;
}

int command_gc(int argc, char **argv, struct err *e)
{
    int settings = 0, quiet = 0;
    const struct opt table[] = {
        { OPT_FLAG, 0, "settings", NULL,
          "remove the files of earlier settings, too", &settings, 0, 0, true },
        { OPT_FLAG, 'q', "quiet", NULL, "do not print how many", &quiet, 0, 0,
          true },
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i =
        opt_parse(argc, argv, "gc [--settings] WORK",
                  "Remove what killed runs left in a work directory.", table);
    int64_t n;

    if (argc - i != 1)
        return err_set(e, E_USAGE, "want WORK (try --help)");
    if (collect(argv[i], settings, &n, e) < 0)
        return e->code;
    if (!quiet)
        printf("%lld removed\n", (long long)n);
    return flushed(e);
}
