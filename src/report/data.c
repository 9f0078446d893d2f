/* data.c - see data.h. */
#include "report/data.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "report/sizes.h"

/* ---- the run ---- */

/* The settings as they are stored, but for directories on the way to files, and
 * the state of the weights' files. */
static void put_settings(struct json_writer *j, const struct page *p)
{
    static const char *const paths[] = { "model", "text", "out", "scratch" };
    const struct json *v = json_first(json_root(p->w->run.doc));
    char name[256];

    for (; v; v = json_after(v)) {
        bool path = false;

        for (size_t i = 0; i < ARRAY_LEN(paths); i++)
            path |= !strcmp(json_key(v), paths[i]);
        if (!strcmp(json_key(v), "weights") || !strcmp(json_key(v), "most"))
            continue;
        jw_key(j, json_key(v));
        if (!path) {
            jw_value(j, v);
            continue;
        }
        path_title(name, sizeof(name), page_text(p, json_key(v)));
        jw_string(j, name);
    }
}

static void put_totals(struct json_writer *j, const struct page *p)
{
    const struct workdir *w = p->w;
    double loss = page_loss_sum(p, 2), rtn = page_loss_sum(p, 0);

    jw_key(j, "totals"), jw_begin(j, '{');
    jw_known_number(j, "bytes_in", w->bytes_in > 0 ? w->bytes_in : NAN);
    jw_known_number(j, "bytes_out", w->bytes_out > 0 ? w->bytes_out : NAN);
    jw_known_count(j, "parameters", w->params ? (int64_t)w->params : -1);
    jw_known_number(j, "bits_per_quantized_weight", sizes_linear_bits(w));
    jw_known_number(j, "bits_per_parameter", sizes_bits(w));
    jw_known_count(j, "layers_solved", (int64_t)w->layers_done);
    jw_known_count(j, "calibration_tokens",
                   w->tokens.sequences ? (int64_t)w->tokens.tokens : -1);
    if (p->has_loss) {
        jw_known_number(j, "loss", loss);
        jw_known_number(j, "loss_rtn", rtn);
        jw_known_number(j, "loss_compared",
                        p->compared ? page_loss_sum(p, 1) : NAN);
    }
    jw_known_number(j, "seconds", w->seconds);
    jw_known_number(j, "peak_bytes", w->peak_bytes);
    jw_end(j, '}');
}

/* ---- evaluations ---- */

static void put_positions(struct json_writer *j, const struct figures *f)
{
    if (!f->positions)
        return;
    jw_key(j, "by_position"), jw_begin(j, '[');
    for (size_t i = 0; i < f->positions; i++) {
        const struct figures_at *a = &f->at[i];

        jw_begin(j, '{');
        jw_known_count(j, "from", a->from);
        jw_known_count(j, "tokens", a->tokens);
        jw_known_number(j, "ppl_original", a->ppl_original);
        jw_known_number(j, "ppl", a->ppl);
        jw_known_number(j, "kl_mean", a->kl_mean);
        jw_known_number(j, "kl_sem", a->kl_sem);
        jw_end(j, '}');
    }
    jw_end(j, ']');
}

static void put_figures(struct json_writer *j, const struct figures *f)
{
    jw_begin(j, '{');
    jw_known_text(j, "original", f->original);
    jw_known_text(j, "other", f->other);
    jw_known_count(j, "layer", f->layer);
    jw_known_text(j, "dtype", f->dtype);
    jw_known_text(j, "text", f->text);
    jw_known_text(j, "text_sha256", f->sha256);
    jw_known_count(j, "seqlen", f->seqlen);
    jw_known_count(j, "sequences", f->sequences);
    jw_known_count(j, "tokens", f->tokens);
    jw_known_number(j, "ppl_original", f->ppl_original);
    jw_known_number(j, "ppl", f->ppl);
    jw_known_number(j, "kl_mean", f->kl_mean);
    jw_known_number(j, "kl_sem", f->kl_sem);
    jw_known_number(j, "kl_median", f->kl_median);
    jw_known_number(j, "kl_p99", f->kl_p99);
    jw_known_number(j, "kl_max", f->kl_max);
    jw_known_number(j, "top1", f->top1);
    if (f->kl_bins) {
        jw_key(j, "kl_histogram"), jw_begin(j, '{');
        jw_known_number(j, "from", f->kl_from);
        jw_known_number(j, "per_decade", f->kl_per_decade);
        jw_key(j, "counts"), jw_begin(j, '[');
        for (size_t i = 0; i < f->kl_bins; i++)
            jw_int(j, f->kl_count[i]);
        jw_end(j, ']');
        jw_end(j, '}');
    }
    put_positions(j, f);
    jw_end(j, '}');
}

static void put_evaluation(struct json_writer *j, const char *name,
                           const struct records *r)
{
    if (!r->n_figures)
        return;
    jw_key(j, name), jw_begin(j, '[');
    for (size_t i = 0; i < r->n_figures; i++)
        put_figures(j, &r->figures[i]);
    jw_end(j, ']');
}

static void put_evaluations(struct json_writer *j, const struct page *p)
{
    const struct peers *peers = &p->params->peers;

    put_evaluation(j, "evaluation", p->r);
    if (!peers->count)
        return;
    jw_key(j, "evaluations_beside"), jw_begin(j, '{');
    for (size_t i = 0; i < peers->count; i++)
        put_evaluation(j, peers->peer[i].name, &peers->peer[i].figures);
    jw_end(j, '}');
}

/* ---- modules, steps, experts ---- */

static const char *compared_key(const struct page *p)
{
    return p->plain ? "loss_gptq" : "loss_beside";
}

static void put_module(struct json_writer *j, const struct page *p,
                       const struct module *m)
{
    jw_begin(j, '{');
    jw_known_text(j, "module", m->name);
    jw_known_count(j, "layer", m->layer);
    jw_known_count(j, "expert", m->expert);
    jw_known_text(j, "kind", p->r->kind[m->kind]);
    jw_known_text(j, "method", m->method);
    jw_known_text(j, "order", m->order);
    jw_known_count(j, "weights", m->weights ? (int64_t)m->weights : -1);
    jw_known_number(j, "bits", sizes_module_bits(m));
    jw_known_count(j, "samples", m->samples);
    jw_known_number(j, "damping", m->damping);
    jw_known_number(j, "loss", m->loss);
    jw_known_number(j, "loss_rtn", m->loss_rtn);
    jw_known_number(j, compared_key(p), m->loss_compared);
    jw_known_number(j, "ratio", module_ratio(m));
    jw_known_number(j, "seconds", m->seconds);
    jw_end(j, '}');
}

static void put_steps(struct json_writer *j, const struct records *r)
{
    jw_key(j, "steps"), jw_begin(j, '[');
    for (size_t i = 0; i < r->steps; i++) {
        const struct step *s = &r->step[i];

        jw_begin(j, '{');
        jw_known_text(j, "step", s->name);
        jw_known_count(j, "layer", s->layer);
        jw_known_text(j, "host", s->host);
        jw_known_number(j, "seconds", s->seconds);
        jw_end(j, '}');
    }
    jw_end(j, ']');
}

static void put_experts(struct json_writer *j, const struct hitmaps *maps)
{
    static const char *const name[HITS] = { "tokens",  "scores", "weights",
                                            "squares", "output", "mass" };

    if (!maps->count)
        return;
    jw_key(j, "experts"), jw_begin(j, '[');
    for (size_t i = 0; i < maps->count; i++) {
        const struct hitmap *m = &maps->map[i];

        jw_begin(j, '{');
        jw_known_count(j, "layer", m->layer);
        for (int k = 0; k < HITS; k++) {
            jw_key(j, name[k]), jw_begin(j, '[');
            for (size_t x = 0; x < m->experts; x++)
                jw_number(j, hit_value(m, x, (enum hit)k));
            jw_end(j, ']');
        }
        jw_end(j, '}');
    }
    jw_end(j, ']');
}

static void put_all(struct json_writer *j, const struct page *p)
{
    jw_begin(j, '{');
    jw_known_text(j, "format", "4bit-forge report 1");
    jw_known_text(j, "title", p->model);
    jw_key(j, "settings"), jw_begin(j, '{');
    put_settings(j, p);
    jw_end(j, '}');
    put_totals(j, p);
    put_evaluations(j, p);
    jw_key(j, "modules"), jw_begin(j, '[');
    for (size_t i = 0; i < p->r->modules; i++)
        put_module(j, p, &p->r->module[i]);
    jw_end(j, ']');
    put_steps(j, p->r);
    put_experts(j, &p->w->hits);
    jw_end(j, '}');
}

int data_json(const struct page *p, char **text, size_t *len, struct err *e)
{
    struct json_writer j;

    jw_init(&j, 1);
    put_all(&j, p);
    *text = j.text;
    *len = j.len;
    return j.failed ? err_set(e, E_TEMP, "report: out of memory") : 0;
}

/* ---- CSV ---- */

static void csv_text(FILE *out, const char *s)
{
    if (!s[strcspn(s, ",\"\r\n")]) {
        fputs(s, out);
        return;
    }
    putc('"', out);
    for (; *s; s++)
        fprintf(out, *s == '"' ? "\"%c" : "%c", *s);
    putc('"', out);
}

static void csv_number(FILE *out, double v)
{
    fputs(",", out);
    if (isfinite(v))
        fprintf(out, "%.17g", v);
}

static void csv_count(FILE *out, int64_t n)
{
    fputs(",", out);
    if (n >= 0)
        fprintf(out, "%" PRId64, n);
}

static void csv_row(FILE *out, const struct page *p, const struct module *m)
{
    csv_text(out, m->name);
    csv_count(out, m->layer);
    csv_count(out, m->expert);
    fputs(",", out);
    csv_text(out, p->r->kind[m->kind]);
    fputs(",", out);
    csv_text(out, m->method);
    fputs(",", out);
    csv_text(out, m->order);
    csv_count(out, m->weights ? (int64_t)m->weights : -1);
    csv_number(out, sizes_module_bits(m));
    csv_count(out, m->samples);
    csv_number(out, m->damping);
    csv_number(out, m->loss);
    csv_number(out, m->loss_rtn);
    csv_number(out, m->loss_compared);
    csv_number(out, module_ratio(m));
    csv_number(out, m->seconds);
    fputs("\r\n", out);
}

int data_csv(const struct page *p, char **text, size_t *len, struct err *e)
{
    FILE *out;

    *text = NULL;
    out = open_memstream(text, len);
    if (!out)
        return err_set(e, E_TEMP, "report: out of memory");
    fprintf(out,
            "module,layer,expert,kind,method,order,weights,bits,samples,"
            "damping,loss,loss_rtn,%s,ratio,seconds\r\n",
            compared_key(p));
    for (size_t i = 0; i < p->r->modules; i++)
        csv_row(out, p, &p->r->module[i]);
    return fclose(out) ? err_set(e, E_TEMP, "report: out of memory") : 0;
}
