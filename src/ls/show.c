/* show.c - see show.h.  Columns are separated by tabs, for cut and awk. */
#include "ls/show.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "common/math/quant.h"
#include "ls/values.h"

enum { HEAD_ROWS = 8, HEAD_COLS = 8, BAR = 50 };

static uint64_t elements(const struct frame *f)
{
    uint64_t n = 1;

    for (int i = 0; i < f->ndim; i++)
        n *= f->dims[i]; /* no overflow: the reader has checked it */
    return n;
}

/* ---- lines ---- */

/* A name of the input has no terminal control sequences on the screen. */
static void line_of(const struct frame *f)
{
    char shape[256], name[sizeof(f->name)];

    snprintf(name, sizeof(name), "%s", f->name);
    for (char *p = name; *p; p++)
        if (iscntrl((unsigned char)*p))
            *p = '?';
    printf("%s\t%s\t%s\t%s\t%zu\n", role_name(f->role), name,
           dtype_name(f->dtype), frame_shape(f, shape, sizeof(shape)), f->len);
}

static void print_value(const struct frame *f, uint64_t i)
{
    double v;

    if (f->dtype == DT_QMETA4) {
        enum dtype t = f->scale_dtype ? f->scale_dtype : DT_F32;
        uint32_t meta;
        struct qgrid g;

        memcpy(&meta, (const char *)f->data + 4 * i, sizeof(meta));
        g = quant_grid(meta, t);
        printf("%.6g/%d", (double)g.scale, g.zero);
        return;
    }
    values_get(&v, f->dtype, f->data, i, 1);
    printf("%.9g", v);
}

static void head_lines(const struct frame *f)
{
    uint64_t cols = f->ndim ? f->dims[f->ndim - 1] : 1;
    uint64_t rows = cols ? elements(f) / cols : 0;

    if (f->role == ROLE_NOTE) {
        printf("%.*s\n", (int)f->len, (const char *)f->data);
        return;
    }
    for (uint64_t r = 0; r < rows && r < HEAD_ROWS; r++) {
        for (uint64_t c = 0; c < cols && c < HEAD_COLS; c++) {
            if (c)
                printf("\t");
            print_value(f, r * cols + c);
        }
        printf("%s\n", cols > HEAD_COLS ? "\t..." : "");
    }
    if (rows > HEAD_ROWS)
        printf("...\n");
}

static void stats_lines(const struct stats *s)
{
    printf("count\t%llu\nmin\t%.9g\nmax\t%.9g\nmean\t%.9g\nstd\t%.9g\n"
           "zeros\t%llu\nnonfinite\t%llu\n",
           (unsigned long long)s->count, s->min, s->max, s->mean, s->std,
           (unsigned long long)s->zeros, (unsigned long long)s->nonfinite);
}

static void histogram_lines(const struct stats *s, const uint64_t *bins)
{
    double width = (s->max - s->min) / HISTOGRAM_BINS;
    uint64_t most = 1;

    for (int i = 0; i < HISTOGRAM_BINS; i++)
        if (bins[i] > most)
            most = bins[i];
    for (int i = 0; i < HISTOGRAM_BINS; i++) {
        int bar = (int)((double)bins[i] / (double)most * BAR + 0.5);

        printf("%12.5g\t%llu\t%.*s\n", s->min + i * width,
               (unsigned long long)bins[i], bar,
               "##################################################");
    }
}

/* ---- JSON ---- */

static int add_module(const char *module, void *w)
{
    jw_string(w, module);
    return 0;
}

static void add_number(struct json_writer *w, const char *key, uint64_t v)
{
    if (!v)
        return;
    jw_key(w, key);
    jw_int(w, (int64_t)v);
}

static void add_meta(struct json_writer *w, const struct frame *f)
{
    jw_key(w, "role"), jw_string(w, role_name(f->role));
    jw_key(w, "name"), jw_string(w, f->name);
    jw_key(w, "dtype"), jw_string(w, dtype_name(f->dtype));
    jw_key(w, "shape"), jw_begin(w, '[');
    for (int i = 0; i < f->ndim; i++)
        jw_int(w, (int64_t)f->dims[i]);
    jw_end(w, ']');
    jw_key(w, "bytes"), jw_int(w, (int64_t)f->len);
    if (f->modules) {
        jw_key(w, "modules"), jw_begin(w, '[');
        (void)frame_each_module(f, add_module, w);
        jw_end(w, ']');
    }
    add_number(w, "samples", f->samples);
    add_number(w, "sequence", f->sequence);
    add_number(w, "block", f->block);
    add_number(w, "group", f->group);
    if (f->scale_dtype)
        jw_key(w, "scale_dtype"), jw_string(w, dtype_name(f->scale_dtype));
    if (f->last)
        jw_key(w, "last"), jw_bool(w, true);
    if (f->ancillary)
        jw_key(w, "ancillary"), jw_bool(w, true);
}

static void add_head(struct json_writer *w, const struct frame *f)
{
    uint64_t n = elements(f);
    double v;

    if (n > HEAD_ROWS * HEAD_COLS)
        n = HEAD_ROWS * HEAD_COLS;
    jw_key(w, "values"), jw_begin(w, '[');
    for (uint64_t i = 0; i < n; i++) {
        values_get(&v, f->dtype, f->data, i, 1);
        jw_number(w, v);
    }
    jw_end(w, ']');
}

static void add_stats(struct json_writer *w, const struct stats *s)
{
    jw_key(w, "count"), jw_int(w, (int64_t)s->count);
    jw_key(w, "min"), jw_number(w, s->min);
    jw_key(w, "max"), jw_number(w, s->max);
    jw_key(w, "mean"), jw_number(w, s->mean);
    jw_key(w, "std"), jw_number(w, s->std);
    jw_key(w, "zeros"), jw_int(w, (int64_t)s->zeros);
    jw_key(w, "nonfinite"), jw_int(w, (int64_t)s->nonfinite);
}

static int show_json(struct show_options o, const struct frame *f,
                     const char *path, const char *shard, const struct stats *s,
                     const uint64_t *bins, struct err *e)
{
    struct json_writer w;

    jw_init(&w, 0);
    jw_begin(&w, '{');
    jw_key(&w, "path"), jw_string(&w, path);
    if (shard)
        jw_key(&w, "file"), jw_string(&w, shard);
    add_meta(&w, f);
    if (o.what == SHOW_HEAD)
        add_head(&w, f);
    if (o.what == SHOW_STATS || o.what == SHOW_HISTOGRAM)
        add_stats(&w, s);
    if (o.what == SHOW_HISTOGRAM) {
        jw_key(&w, "histogram"), jw_begin(&w, '[');
        for (int i = 0; i < HISTOGRAM_BINS; i++)
            jw_int(&w, (int64_t)bins[i]);
        jw_end(&w, ']');
    }
    jw_end(&w, '}');
    if (!w.failed)
        printf("%s\n", w.text);
    free(w.text);
    return w.failed ? err_set(e, E_TEMP, "cannot allocate a line") : 0;
}

int show_tensor(struct show_options o, const struct frame *f, const char *path,
                const char *shard, struct err *e)
{
    uint64_t bins[HISTOGRAM_BINS];
    struct stats s;

    if (o.what == SHOW_STATS || o.what == SHOW_HISTOGRAM)
        values_stats(&s, f->dtype, f->data, elements(f));
    if (o.what == SHOW_HISTOGRAM)
        values_histogram(bins, &s, f->dtype, f->data);
    if (o.json)
        return show_json(o, f, path, shard, &s, bins, e);
    line_of(f);
    if (o.what == SHOW_HEAD)
        head_lines(f);
    else if (o.what == SHOW_STATS)
        stats_lines(&s);
    else if (o.what == SHOW_HISTOGRAM)
        histogram_lines(&s, bins);
    return 0;
}
