/* report.c - see report.h. */
#include "eval/report.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/io/file.h"
#include "common/io/json.h"

static int written(FILE *out, struct err *e)
{
    if (fflush(out) || ferror(out))
        return err_set(e, E_IO, "'<stdout>': cannot write:");
    return 0;
}

/* Infinity, which JSON lacks, becomes the largest double. */
static void member(struct json_writer *w, const char *key, double v)
{
    jw_known_number(w, key, fmin(v, DBL_MAX));
}

static void put_subject(struct json_writer *w, const struct report *p)
{
    jw_known_text(w, "original", p->of->original);
    jw_known_text(w, "other", p->of->other);
    jw_known_count(w, "layer", p->layer);
    jw_known_text(w, "dtype", p->of->dtype);
    jw_known_text(w, "text", p->of->text);
    jw_known_text(w, "text_sha256", p->of->sha256);
    jw_known_count(w, "seqlen", (int64_t)p->of->seqlen);
    jw_known_count(w, "sequences", (int64_t)p->of->sequences);
    jw_known_count(w, "tokens",
                   (int64_t)(p->of->states ? p->s.tokens : p->r.all.positions));
}

static void put_states(struct json_writer *w, const struct similarity_result *s)
{
    member(w, "cosine_mean", s->cosine_mean);
    member(w, "cosine_sem", s->cosine_sem);
    member(w, "cosine_min", s->cosine_min);
    member(w, "cosine_last", s->cosine_last);
    member(w, "cosine_last_sem", s->cosine_last_sem);
    member(w, "error_rms", s->error_rms);
    member(w, "error_sem", s->error_sem);
}

static void put_means(struct json_writer *w, const struct score_means *m)
{
    member(w, "ppl_original", m->ppl_original);
    member(w, "ppl", m->ppl);
    member(w, "kl_mean", m->kl_mean);
    member(w, "kl_sem", m->kl_sem);
}

static void put_histogram(struct json_writer *w, const uint64_t *count)
{
    jw_key(w, "kl_histogram");
    jw_begin(w, '{');
    member(w, "from", KL_FROM);
    jw_known_count(w, "per_decade", KL_PER_DECADE);
    jw_key(w, "counts");
    jw_begin(w, '[');
    for (int i = 0; i <= KL_EDGES; i++)
        jw_int(w, (int64_t)count[i]);
    jw_end(w, ']');
    jw_end(w, '}');
}

static void put_bins(struct json_writer *w, const struct score_result *r)
{
    jw_key(w, "by_position");
    jw_begin(w, '[');
    for (size_t i = 0; i < r->bins; i++) {
        const struct score_means *m = &r->bin[i];

        jw_begin(w, '{');
        jw_known_count(w, "from", (int64_t)score_bin_from(i));
        jw_known_count(w, "tokens", (int64_t)m->positions);
        put_means(w, m);
        jw_end(w, '}');
    }
    jw_end(w, ']');
}

static void put_predictions(struct json_writer *w, const struct score_result *r)
{
    put_means(w, &r->all);
    member(w, "kl_median", r->kl_median);
    member(w, "kl_p99", r->kl_p99);
    member(w, "kl_max", r->kl_max);
    member(w, "top1", r->top1);
    put_histogram(w, r->kl_count);
    put_bins(w, r);
}

static int put_line(FILE *out, const struct report *p, struct err *e)
{
    struct json_writer w;

    jw_init(&w, 0);
    jw_begin(&w, '{');
    put_subject(&w, p);
    if (p->of->states)
        put_states(&w, &p->s);
    else
        put_predictions(&w, &p->r);
    jw_end(&w, '}');
    if (w.failed) {
        free(w.text);
        return err_set(e, E_TEMP, "report: out of memory");
    }
    fprintf(out, "%s\n", w.text);
    free(w.text);
    return written(out, e);
}

int report_json(FILE *out, const struct report *p, size_t n, struct err *e)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < n; i++)
        rc = put_line(out, &p[i], e);
    return rc;
}

int report_file(const char *path, const struct report *p, size_t n,
                struct err *e)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    int rc = out ? report_json(out, p, n, e) :
                   err_set(e, E_TEMP, "report: out of memory");

    if (out && fclose(out) && !rc)
        rc = err_set(e, E_TEMP, "report: out of memory");
    if (!rc)
        rc = publish_text(path, text, len, e);
    free(text);
    return rc;
}

/* A row for each bin of positions. */
static void bin_rows(FILE *out, const struct report *p)
{
    fprintf(out, "\n%-13s  %8s  %13s  %10s  %s\n", "positions", "tokens",
            "ppl original", "ppl other", "KL mean");
    for (size_t i = 0; i < p->r.bins; i++) {
        const struct score_means *m = &p->r.bin[i];
        uint64_t end = score_bin_from(i + 1);
        char range[48];

        /* the last position predicts the last token */
        end = end < p->of->seqlen ? end : p->of->seqlen - 1;
        snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64,
                 score_bin_from(i), end - 1);
        fprintf(out, "%-13s  %8" PRIu64 "  %13.4f  %10.4f  %.6f +- %.6f\n",
                range, m->positions, m->ppl_original, m->ppl, m->kl_mean,
                m->kl_sem);
    }
}

static void states_table(FILE *out, const struct report *p)
{
    const struct similarity_result *s = &p->s;

    fprintf(out, "tokens compared      %" PRIu64 " in %zu sequences\n",
            s->tokens, p->of->sequences);
    fprintf(out, "cosine mean          %.6f +- %.6f\n", s->cosine_mean,
            s->cosine_sem);
    fprintf(out, "cosine min           %.6f\n", s->cosine_min);
    fprintf(out, "cosine last token    %.6f +- %.6f\n", s->cosine_last,
            s->cosine_last_sem);
    fprintf(out, "relative error RMS   %.6f +- %.6f\n", s->error_rms,
            s->error_sem);
}

static void predictions_table(FILE *out, const struct report *p)
{
    const struct score_result *r = &p->r;

    fprintf(out, "tokens scored        %" PRIu64 " in %zu sequences\n",
            r->all.positions, p->of->sequences);
    fprintf(out, "perplexity original  %.4f\n", r->all.ppl_original);
    fprintf(out, "perplexity other     %.4f (%+.2f %%)\n", r->all.ppl,
            100 * (r->all.ppl / r->all.ppl_original - 1));
    fprintf(out, "KL mean              %.6f +- %.6f\n", r->all.kl_mean,
            r->all.kl_sem);
    fprintf(out, "KL 99 %%              %.6f\n", r->kl_p99);
    fprintf(out, "KL max               %.6f\n", r->kl_max);
    fprintf(out, "top-1 agreement      %.2f %%\n", 100 * r->top1);
    bin_rows(out, p);
}

int report_table(FILE *out, const struct report *p, struct err *e)
{
    fprintf(out, "original             %s\n", p->of->original);
    fprintf(out, "other                %s\n", p->of->other);
    if (p->of->states)
        states_table(out, p);
    else
        predictions_table(out, p);
    return written(out, e);
}

static void states_rows(FILE *out, const struct report *p, size_t n)
{
    fprintf(out, "tokens compared      %" PRIu64 " in %zu sequences\n",
            p->s.tokens, p->of->sequences);
    fprintf(out, "\nup to layer  cosine mean        min  last token  "
                 "error RMS\n");
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%11" PRId64 "  %11.6f  %9.6f  %10.6f  %9.6f\n",
                p[i].layer, p[i].s.cosine_mean, p[i].s.cosine_min,
                p[i].s.cosine_last, p[i].s.error_rms);
}

static void predictions_rows(FILE *out, const struct report *p, size_t n)
{
    fprintf(out, "tokens scored        %" PRIu64 " in %zu sequences\n",
            p->r.all.positions, p->of->sequences);
    fprintf(out, "perplexity original  %.4f\n", p->r.all.ppl_original);
    fprintf(out, "\nup to layer  perplexity   KL mean      KL 99 %%   top-1\n");
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%11" PRId64 "  %10.4f  %.6f  %10.6f  %5.2f %%\n",
                p[i].layer, p[i].r.all.ppl, p[i].r.all.kl_mean, p[i].r.kl_p99,
                100 * p[i].r.top1);
}

int report_rows(FILE *out, const struct report *p, size_t n, struct err *e)
{
    fprintf(out, "original             %s\n", p->of->original);
    fprintf(out, "layers replaced by   %s\n", p->of->other);
    if (p->of->states)
        states_rows(out, p, n);
    else
        predictions_rows(out, p, n);
    return written(out, e);
}
