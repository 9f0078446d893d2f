/* follow.c - see follow.h. */
#include "forge/follow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cli/units.h"
#include "common/io/json.h"
#include "split/notes.h"

enum { LINE_CAP = 1 << 16 };
static const double shortest_gap = 0.1; /* seconds between two drawings */

/* ---- results of earlier calls ---- */

static int64_t layer_of(const struct follow *f, const struct module *m)
{
    return m->layer >= 0 && m->layer < f->r->j.layers ? m->layer : -1;
}

/* Read the report of a layer's modules.  E_NOINPUT, E_DATA: it is lost or damaged, and
 * nothing of it is kept. */
static int read_report(struct follow *f, int64_t layer, const char *path,
                       struct err *e)
{
    struct records *r = &f->records;
    size_t before = r->modules;
    int rc = records_read(r, RECORD_MODULE, path, e);

    if (!rc && r->modules - before != (size_t)f->layer_left[layer])
        rc = err_set(e, E_DATA, "'%s': %zu modules, the layer has %lld", path,
                     r->modules - before, (long long)f->layer_left[layer]);
    while (rc < 0 && r->modules > before)
        records_drop(r);
    return rc;
}

/* The same; a report that is lost or damaged is made again of the codes, which have all
 * that it says. */
static int find_report(struct follow *f, int64_t layer, const char *codes,
                       const char *path, struct err *e)
{
    struct err found;
    int rc = read_report(f, layer, path, e);

    if (rc != E_NOINPUT && rc != E_DATA)
        return rc;
    rc = notes_restore(codes, path, &found);
    if (rc < 0)
        return err_set(e, rc, "%s%s", found.msg,
                       rc == E_DATA ? ": remove it from the work directory, "
                                      "and the same command makes it again" :
                                      "");
    return records_read(&f->records, RECORD_MODULE, path, e);
}

/* Read the report of each layer that has codes. */
static int read_before(struct follow *f, struct err *e)
{
    const struct job *j = &f->r->j;
    char dir[STAGE_DIR], codes[PATH_MAX + 128], path[PATH_MAX + 128];

    job_solve_dir(j, dir);
    for (int64_t i = 0; i < j->layers; i++) {
        if (!f->layer_left[i]) { /* no linear of it is quantized */
            f->layers_done++;
            continue;
        }
        snprintf(codes, sizeof(codes), "%s/%s/codes-%lld.fts", f->r->work_path,
                 dir, (long long)i);
        if (access(codes, F_OK))
            continue;
        snprintf(path, sizeof(path), "%s/%s/report-%lld.jsonl", f->r->work_path,
                 dir, (long long)i);
        if (find_report(f, i, codes, path, e) < 0)
            return e->code;
        f->layer_left[i] = 0;
        f->layers_done++;
    }
    for (size_t i = 0; i < f->records.modules; i++) {
        f->loss += fmax(f->records.module[i].loss, 0);
        f->loss_rtn += fmax(f->records.module[i].loss_rtn, 0);
    }
    f->before = f->done = (int64_t)f->records.modules;
    return 0;
}

static enum follow_show how(const struct request *r)
{
    switch (r->progress) {
    case PROGRESS_JSON: return SHOW_JSON;
    case PROGRESS_ALWAYS: return SHOW_LINE;
    case PROGRESS_NEVER: return SHOW_NONE;
    default: return r->quiet ? SHOW_NONE : isatty(2) ? SHOW_LINE : SHOW_LAYERS;
    }
}

static struct follow nothing_yet(const struct request *r, double estimate)
{
    return (struct follow){
        .r = r, .show = how(r), .started = seconds_now(), .estimate = estimate
    };
}

int follow_begin(struct follow *f, const struct request *r, double estimate,
                 struct err *e)
{
    size_t n = (size_t)r->j.layers;

    *f = nothing_yet(r, estimate);
    f->layer_left = mem_alloc(n * sizeof(*f->layer_left), "progress", e);
    f->text = mem_alloc(LINE_CAP, "progress", e);
    if (!f->layer_left || !f->text)
        return e->code;
    memcpy(f->layer_left, r->plan.layer_modules, n * sizeof(*f->layer_left));
    return read_before(f, e);
}

/* ---- progress ---- */

/* The fraction of this call's work that is done, 0..1, by the number of
 * modules: the steps before and after solving take little of the time. */
static double share(const struct follow *f)
{
    int64_t all = f->r->j.modules - f->before;

    return all > 0 ? (double)(f->done - f->before) / (double)all : 1;
}

/* Seconds to go; negative: not known.  At the beginning (share < 0.1) a mean of
 * the estimate and of the extrapolation, by how much has been done. */
static double to_go(const struct follow *f, double elapsed)
{
    double s = share(f);

    if (f->estimate > 0 && s < 0.1) {
        double left = f->estimate - elapsed, seen = s / 0.1;

        left = left > 0 ? left : 0;
        return s > 0 ? (1 - seen) * left + seen * elapsed * (1 - s) / s : left;
    }
    return s > 0 ? elapsed * (1 - s) / s : -1;
}

/* Compose the terminal's line, the most important columns first; the end may be
 * cut off. */
static void compose(const struct follow *f, char *line, size_t cap)
{
    double t = seconds_now() - f->started, left = to_go(f, t);
    char span[UNIT_TEXT];
    int n = snprintf(line, cap, "%3.0f %%  layer %lld/%lld",
                     100 * (double)f->done / (double)f->r->j.modules,
                     (long long)f->layers_done, (long long)f->r->j.layers);

    if (left >= 0)
        n += snprintf(line + n, cap - (size_t)n, "  %s to go",
                      span_text(span, left));
    if (f->loss_rtn > 0)
        n += snprintf(line + n, cap - (size_t)n, "  loss %.3f of rounding",
                      f->loss / f->loss_rtn);
    snprintf(line + n, cap - (size_t)n, "  %s", f->doing);
}

void follow_draw(struct follow *f)
{
    char line[256], out[300];
    double now = seconds_now();
    int columns;

    if (f->show != SHOW_LINE || now - f->drawn < shortest_gap)
        return;
    f->drawn = now;
    compose(f, line, sizeof(line));
    columns = progress_columns() - 1;
    if (columns > 0 && (size_t)columns < strlen(line))
        line[columns] = 0;
    snprintf(out, sizeof(out), "\r%s\033[K", line);
    if (write(2, out, strlen(out)) < 0)
        return;
    f->on_screen = true;
}

void follow_clear(struct follow *f)
{
    static const char clear[] = "\r\033[K";

    if (f->show == SHOW_LINE && f->on_screen &&
        write(2, clear, sizeof(clear) - 1) < 0)
        return;
    f->on_screen = false;
}

/* Without a terminal: print a line for each layer. */
static void say_layer(const struct follow *f, int64_t layer)
{
    double t = seconds_now() - f->started, left = to_go(f, t);
    char line[256], a[UNIT_TEXT], b[UNIT_TEXT];
    int n = snprintf(line, sizeof(line), "forge: layer %lld of %lld, %.0f %%",
                     (long long)layer + 1, (long long)f->r->j.layers,
                     100 * (double)f->done / (double)f->r->j.modules);

    if (f->loss_rtn > 0)
        n += snprintf(line + n, sizeof(line) - (size_t)n,
                      ", loss %.3f of rounding", f->loss / f->loss_rtn);
    n += snprintf(line + n, sizeof(line) - (size_t)n, ", %s, %s to go\n",
                  span_text(a, t), left < 0 ? "?" : span_text(b, left));
    if (write(2, line, (size_t)n) < 0)
        return;
}

/* ---- JSON ---- */

static void json_begin(const struct follow *f, struct json_writer *w)
{
    double t = seconds_now() - f->started;

    jw_init(w, 0);
    jw_begin(w, '{');
    jw_key(w, "v"), jw_int(w, 1);
    jw_key(w, "t"), jw_number(w, floor(t * 1000) / 1000);
    jw_key(w, "done"), jw_int(w, f->done);
    jw_key(w, "total"), jw_int(w, f->r->j.modules);
    jw_key(w, "layers"), jw_int(w, f->r->j.layers);
    if (to_go(f, t) >= 0)
        jw_key(w, "eta"), jw_number(w, floor(to_go(f, t) * 1000) / 1000);
}

static void json_end(struct json_writer *w)
{
    jw_end(w, '}');
    if (!w->failed) {
        w->text[w->len] = '\n'; /* in place of the NUL */
        if (write(2, w->text, w->len + 1) < 0)
            w->failed = true;
    }
    free(w->text);
}

/* Print an event with the members of a module's report. */
static void json_module(const struct follow *f, const char *line, size_t len)
{
    struct json_writer w;
    struct json_doc *d;
    struct err e;

    if (json_parse(&d, line, len, "report", &e) < 0)
        return;
    json_begin(f, &w);
    for (const struct json *v = json_first(json_root(d)); v;
         v = json_after(v)) {
        jw_key(&w, json_key(v));
        jw_value(&w, v);
    }
    json_end(&w);
    json_free(d);
}

void follow_end(const struct follow *f, int status, const char *why,
                uint64_t bytes_out)
{
    struct json_writer w;

    if (f->show != SHOW_JSON)
        return;
    json_begin(f, &w);
    jw_key(&w, "event"), jw_string(&w, "end");
    jw_key(&w, "status"), jw_int(&w, status);
    if (status) {
        jw_key(&w, "error"), jw_string(&w, why);
    } else {
        jw_key(&w, "out"), jw_string(&w, f->r->j.out);
        jw_key(&w, "bytes_in"), jw_int(&w, (int64_t)f->r->j.bytes_in);
        jw_key(&w, "bytes_out"), jw_int(&w, (int64_t)bytes_out);
        jw_key(&w, "loss"), jw_number(&w, f->loss);
        jw_key(&w, "loss_rtn"), jw_number(&w, f->loss_rtn);
    }
    json_end(&w);
}

void follow_never(const struct request *r, int status, const char *why)
{
    const struct follow f = nothing_yet(r, 0);

    follow_end(&f, status, why, 0);
}

/* ---- events ---- */

/* Whether the last module has been reported before: a failed step that is run
 * again (FORGE_RETRIES) repeats some. */
static bool again(const struct follow *f)
{
    const struct module *last = &f->records.module[f->records.modules - 1];

    for (const struct module *m = f->records.module; m < last; m++)
        if (m->layer == last->layer && m->kind == last->kind &&
            m->expert == last->expert)
            return true;
    return false;
}

static void take_module(struct follow *f, const char *line, size_t len)
{
    const struct module *m;
    struct err e;
    int64_t layer;

    if (records_line(&f->records, RECORD_MODULE, line, len, &e) < 0)
        return;
    if (f->failed && again(f)) {
        records_drop(&f->records);
        return;
    }
    m = &f->records.module[f->records.modules - 1];
    f->done++;
    f->loss += fmax(m->loss, 0); /* NAN counts as 0 */
    f->loss_rtn += fmax(m->loss_rtn, 0);
    if (f->show == SHOW_JSON)
        json_module(f, line, len);
    layer = layer_of(f, m);
    if (layer >= 0 && f->layer_left[layer] && !--f->layer_left[layer]) {
        f->layers_done++;
        f->drawn = 0; /* draw at once */
        follow_draw(f);
        if (f->show == SHOW_LAYERS)
            say_layer(f, layer);
    }
}

/* Keep the first error as the reason; make stops the other steps because of it.
 * But one of status 75 (E_TEMP) may have been retried with success
 * (FORGE_RETRIES), so a later error of another status replaces it. */
static void take_error(struct follow *f, const char *line)
{
    char *text;
    long code = strtol(line, &text, 10);

    if (code < 1 || code > 78)
        code = -E_BUG;
    if (f->failed && !(f->failed == E_TEMP && -code != E_TEMP))
        return;
    f->failed = (int)-code;
    text += *text == ' ';
    snprintf(f->reason, sizeof(f->reason), "%s",
             text + (strncmp(text, "forge: ", 7) ? 0 : 7));
}

static void take(struct follow *f, char *line, size_t len)
{
    line[len] = 0;
    if (*line == '{')
        take_module(f, line, len);
    else if (!strncmp(line, "begin ", 6))
        snprintf(f->doing, sizeof(f->doing), "%s", line + 6);
    else if (!strncmp(line, "error ", 6))
        take_error(f, line + 6);
}

bool follow_read(struct follow *f, int fd)
{
    ssize_t n = read(fd, f->text + f->len, LINE_CAP - f->len);
    char *from = f->text, *end;

    if (n <= 0)
        return n < 0;
    f->len += (size_t)n;
    while ((end = memchr(from, '\n', f->len - (size_t)(from - f->text)))) {
        take(f, from, (size_t)(end - from));
        from = end + 1;
    }
    f->len -= (size_t)(from - f->text);
    memmove(f->text, from, f->len);
    if (f->len == LINE_CAP)
        f->len = 0;
    return true;
}

void follow_release(struct follow *f)
{
    records_release(&f->records);
    free(f->layer_left);
    free(f->text);
    f->layer_left = NULL;
    f->text = NULL;
}
