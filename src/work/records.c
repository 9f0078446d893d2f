/* records.c - see records.h. */
#include "work/records.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/io/file.h"
#include "common/io/json.h"
#include "common/io/modeldir.h"

enum { FILE_MAX = 1 << 28, FIRST = 64, KINDS_MAX = 1024 };

static double number(const struct json *v, const char *key)
{
    double x = NAN;

    return json_number(json_get(v, key), &x) ? x : NAN;
}

static int64_t count(const struct json *v, const char *key)
{
    int64_t n = -1;

    return json_int(json_get(v, key), &n) && n >= 0 ? n : -1;
}

static void word(char *to, size_t cap, const struct json *v, const char *key)
{
    const char *s = "";

    if (!json_string(json_get(v, key), &s))
        s = "";
    snprintf(to, cap, "%s", s);
}

/* Make room for one more element, and zero it. */
static int more(void *pp, size_t *cap, size_t used, size_t size, struct err *e)
{
    char **p = pp;
    size_t n = *cap ? *cap : FIRST, bytes;

    if (used == *cap) {
        if ((*cap && size_mul(n, (size_t)2, &n)) || size_mul(n, size, &bytes))
            return err_set(e, E_DATA, "report: too many records");
        if (mem_grow(p, bytes, "report", e) < 0)
            return e->code;
        *cap = n;
    }
    memset(*p + used * size, 0, size);
    return 0;
}

static int copy(char **to, const char *s, struct err *e)
{
    size_t n = strlen(s) + 1;

    *to = mem_alloc(n, "report", e);
    if (!*to)
        return e->code;
    memcpy(*to, s, n);
    return 0;
}

/* "model.layers.3.mlp.experts.7.up_proj" -> 3, 7, "mlp.experts.*.up_proj" */
static void take_apart(const char *name, int64_t *layer, int64_t *expert,
                       char *kind, size_t cap)
{
    struct tensor_name n;

    tensor_name_parse(&n, name);
    *layer = n.layer;
    *expert = n.expert;
    n.layer = -1;
    if (n.expert >= 0)
        n.expert = EXPERT_ANY;
    tensor_name_format(&n, kind, cap);
}

static int find_kind(struct records *r, const char *kind, size_t *k,
                     struct err *e)
{
    for (*k = 0; *k < r->kinds; ++*k)
        if (!strcmp(r->kind[*k], kind))
            return 0;
    if (r->kinds == KINDS_MAX)
        return err_set(e, E_DATA, "more than %d kinds of modules", KINDS_MAX);
    if (more(&r->kind, &r->kinds_cap, r->kinds, sizeof(*r->kind), e) < 0 ||
        copy(&r->kind[r->kinds], kind, e) < 0)
        return e->code;
    r->kinds++;
    return 0;
}

static int add_module(struct records *r, const char *name, struct err *e)
{
    char kind[512];
    struct module *m;

    if (more(&r->module, &r->modules_cap, r->modules, sizeof(*m), e) < 0)
        return e->code;
    m = &r->module[r->modules];
    take_apart(name, &m->layer, &m->expert, kind, sizeof(kind));
    m->seconds = NAN;
    if (find_kind(r, kind, &m->kind, e) < 0 || copy(&m->name, name, e) < 0)
        return e->code;
    r->modules++;
    return 0;
}

static void fill_module(struct module *m, const struct json *v)
{
    word(m->method, sizeof(m->method), v, "method");
    word(m->order, sizeof(m->order), v, "order");
    m->loss = number(v, "loss");
    m->loss_rtn = number(v, "loss_rtn");
    m->loss_compared = number(v, "loss_gptq");
    m->damping = number(v, "damping");
    m->samples = count(v, "samples");
    m->kept = count(v, "rows_kept");
    m->kept = m->kept > 0 ? m->kept : 0;
    m->tries = (int64_t)json_count(json_get(v, "damping_tried"));
}

int records_note(struct records *r, const char *name, const char *text,
                 size_t len, struct err *e)
{
    struct module *last = r->modules ? &r->module[r->modules - 1] : NULL;
    struct json_doc *d;
    const struct json *v;
    int rc = 0;

    if (json_parse(&d, text, len, "note", e) < 0)
        return err_prefix(e, "'%s'", name);
    v = json_root(d);
    if (json_get(v, "method")) {
        rc = add_module(r, name, e);
        if (rc >= 0)
            fill_module(&r->module[r->modules - 1], v);
    } else if (last && !strcmp(last->name, name) && json_get(v, "seconds")) {
        last->seconds = number(v, "seconds");
    }
    json_free(d);
    return rc;
}

static int add_step(struct records *r, const struct json *v, struct err *e)
{
    struct step s = { .layer = count(v, "layer"),
                      .seconds = number(v, "seconds") };

    word(s.name, sizeof(s.name), v, "stage");
    word(s.host, sizeof(s.host), v, "host");
    if (!s.name[0] || !(s.seconds >= 0))
        return err_set(e, E_DATA, "no \"stage\" with \"seconds\"");
    if (more(&r->step, &r->steps_cap, r->steps, sizeof(s), e) < 0)
        return e->code;
    r->step[r->steps++] = s;
    return 0;
}

/* The name of a file or directory, for a reader who need not know the rest. */
static void title(char *to, size_t cap, const struct json *v, const char *key)
{
    const char *s = "";

    (void)!json_string(json_get(v, key), &s);
    path_title(to, cap, s);
}

static void fill_histogram(struct figures *f, const struct json *v)
{
    f->kl_from = number(v, "from");
    f->kl_per_decade = number(v, "per_decade");
    if (!(f->kl_from > 0) || !(f->kl_per_decade >= 1) ||
        !(f->kl_per_decade <= 100))
        return;
    v = json_first(json_get(v, "counts"));
    for (; v && f->kl_bins < FIGURES_BINS; v = json_after(v))
        if (!json_int(v, &f->kl_count[f->kl_bins++]) ||
            f->kl_count[f->kl_bins - 1] < 0)
            break;
    if (v || f->kl_bins < 3)
        f->kl_bins = 0;
}

/* Positions from 0 on, in ascending order, with all of their means; else none. */
static void fill_positions(struct figures *f, const struct json *v)
{
    int64_t after = -1;

    for (v = json_first(v); v && f->positions < FIGURES_POSITIONS;
         v = json_after(v)) {
        struct figures_at *a = &f->at[f->positions++];

        *a = (struct figures_at){ .from = count(v, "from"),
                                  .tokens = count(v, "tokens"),
                                  .ppl_original = number(v, "ppl_original"),
                                  .ppl = number(v, "ppl"),
                                  .kl_mean = number(v, "kl_mean"),
                                  .kl_sem = number(v, "kl_sem") };
        if (a->from <= after || a->tokens < 1 || !(a->ppl_original > 0) ||
            !(a->ppl > 0) ||
            !isfinite(a->ppl_original + a->ppl + a->kl_mean + a->kl_sem))
            break;
        after = a->from;
    }
    if (v || f->at[0].from)
        f->positions = 0;
}

static int add_figures(struct records *r, const struct json *v, struct err *e)
{
    struct figures f = { .layer = count(v, "layer"),
                         .sequences = count(v, "sequences"),
                         .seqlen = count(v, "seqlen"),
                         .tokens = count(v, "tokens"),
                         .ppl_original = number(v, "ppl_original"),
                         .ppl = number(v, "ppl"),
                         .kl_mean = number(v, "kl_mean"),
                         .kl_sem = number(v, "kl_sem"),
                         .kl_median = number(v, "kl_median"),
                         .kl_p99 = number(v, "kl_p99"),
                         .kl_max = number(v, "kl_max"),
                         .top1 = number(v, "top1") };

    if (json_get(v, "cosine_mean"))
        return err_set(e, E_DATA,
                       "figures of hidden states: only those of predictions "
                       "are shown");
    if (!isfinite(f.kl_mean) || !isfinite(f.ppl) || !isfinite(f.top1))
        return err_set(e, E_DATA, "no figures of forge-eval --json");
    title(f.original, sizeof(f.original), v, "original");
    title(f.other, sizeof(f.other), v, "other");
    title(f.text, sizeof(f.text), v, "text");
    word(f.sha256, sizeof(f.sha256), v, "text_sha256");
    word(f.dtype, sizeof(f.dtype), v, "dtype");
    fill_histogram(&f, json_get(v, "kl_histogram"));
    fill_positions(&f, json_get(v, "by_position"));
    if (more(&r->figures, &r->figures_cap, r->n_figures, sizeof(f), e) < 0)
        return e->code;
    r->figures[r->n_figures++] = f;
    return 0;
}

static int add_report(struct records *r, const struct json *v, struct err *e)
{
    const char *name;

    if (!json_string(json_get(v, "module"), &name))
        return err_set(e, E_DATA, "no \"module\"");
    if (add_module(r, name, e) < 0)
        return e->code;
    fill_module(&r->module[r->modules - 1], v);
    r->module[r->modules - 1].seconds = number(v, "seconds");
    return 0;
}

int records_line(struct records *r, enum record_type type, const char *line,
                 size_t len, struct err *e)
{
    struct json_doc *d;
    const struct json *v;
    int rc;

    if (json_parse(&d, line, len, "record", e) < 0)
        return e->code;
    v = json_root(d);
    rc = type == RECORD_STEP   ? add_step(r, v, e) :
         type == RECORD_MODULE ? add_report(r, v, e) :
                                 add_figures(r, v, e);
    json_free(d);
    return rc;
}

void records_drop(struct records *r)
{
    free(r->module[--r->modules].name);
}

int records_read(struct records *r, enum record_type type, const char *path,
                 struct err *e)
{
    char *text, *line, *end;
    size_t len, n = 1;
    int rc = 0;

    if (file_slurp(&text, &len, path, FILE_MAX, e) < 0)
        return e->code;
    for (line = text; rc >= 0 && line < text + len; line = end + 1, n++) {
        end = memchr(line, '\n', (size_t)(text + len - line));
        end = end ? end : text + len;
        if (end > line)
            rc = records_line(r, type, line, (size_t)(end - line), e);
    }
    free(text);
    return rc < 0 ? err_prefix(e, "'%s': line %zu", path, n - 1) : 0;
}

void records_compare(struct records *r, const struct records *other)
{
    /* search on from the last match: both are in (nearly) the same order */
    size_t at = 0;

    for (size_t i = 0; i < r->modules; i++) {
        size_t k = 0;

        while (k < other->modules &&
               strcmp(r->module[i].name, other->module[at].name) != 0) {
            at = (at + 1) % other->modules;
            k++;
        }
        r->module[i].loss_compared =
            k < other->modules ? other->module[at].loss : NAN;
    }
}

void records_release(struct records *r)
{
    for (size_t i = 0; i < r->modules; i++)
        free(r->module[i].name);
    for (size_t i = 0; i < r->kinds; i++)
        free(r->kind[i]);
    free(r->module);
    free(r->kind);
    free(r->step);
    free(r->figures);
    *r = (struct records){ 0 };
}

double loss_ratio(double loss, double rtn)
{
    return rtn > 0 && isfinite(rtn) && isfinite(loss) ? loss / rtn : NAN;
}

double module_ratio(const struct module *m)
{
    return loss_ratio(m->loss, m->loss_rtn);
}
