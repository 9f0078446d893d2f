/* run.c - see run.h. */
#include "calib/run.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "calib/emit.h"
#include "common/cli/units.h"
#include "common/io/sync.h"

/* Hidden states are written again after PUBLISH_REST times the duration of the
 * last writing (the first time: the duration at PUBLISH_RATE).  Writing runs
 * beside the computation, which waits for it at most 1/PUBLISH_REST of the
 * time.  A resumed run repeats the layers from the last states on with the
 * codes that it has, so even a run that is killed again and again advances, if
 * it lives longer than this interval. */
enum { PUBLISH_REST = 16, PUBLISH_SECONDS = 1 };
#define PUBLISH_RATE 1e9 /* bytes a second */

/* Reports an overflow in the layer where it happens. */
int run_check(struct run *r, const struct span *b, int64_t layer, struct err *e)
{
    const struct store *s = r->s;
    int64_t h = model_row(model_config(s->m));
    char what[FRAME_NAME_MAX + 1];
    const void *rows;
    bool finite = false;

    if (model_on_device(s->m) &&
        model_check(s->m, store_rows(s, b->row), b->rows * h, &finite, e) < 0)
        return e->code;
    if (finite)
        return 0;
    if (store_host_x(s, b, &r->rows, &rows, e) < 0)
        return e->code;
    emit_name(layer, POINT_IN, what);
    for (int64_t i = b->first; i < b->first + b->n; i++) {
        const struct sequence *x = &s->sequence[i];

        if (check_finite(s->m, rows, x->length, h, what, x->number, e) < 0)
            return e->code;
        rows = (const char *)rows +
               (size_t)(x->length * h) * dtype_bits(model_dtype(s->m)) / 8;
    }
    return 0;
}

void run_progress(const struct run *r, const struct span *b)
{
    const struct model *m = r->c->m;
    size_t row = (size_t)model_row(model_config(m)) *
                 (model_dtype(m) == DT_BF16 ? 2 : 4);

    for (int64_t i = b->first; i < b->first + b->n; i++)
        progress_step(r->c->progress, NULL,
                      (uint64_t)r->s->sequence[i].length * row);
}

int run_mark(struct run *r, const char *name, struct err *e)
{
    if (sync_write(r->c->out, name, ++r->marks, e) < 0)
        return e->code;
    return stream_flush(r->c->out, e);
}

/* ---- hidden states ---- */

void run_start(struct run *r)
{
    r->published = seconds_now();
}

/* Seconds from one writing to the next. */
static double publish_rest(const struct run *r)
{
    double took = r->publisher.seconds;

    if (took <= 0)
        took =
            (double)store_bytes(r->s) * (r->reference ? 2 : 1) / PUBLISH_RATE;
    return took * PUBLISH_REST > PUBLISH_SECONDS ? took * PUBLISH_REST :
                                                   PUBLISH_SECONDS;
}

/* Bytes of disk that the run still wants when states enter `layer`: codes of that
 * layer and those behind it, and a checkpoint of them, which is made twice. */
static double bytes_ahead(const struct run *r, int64_t layer)
{
    const struct model_config *m = model_config(r->c->m);
    double weights = 0;
    struct linear l;

    for (int64_t i = layer; i < m->n_layers; i++)
        for (int64_t k = 0, n = model_linear_count(m, i); k < n; k++) {
            model_linear(m, i, k, &l);
            weights += (double)l.rows * (double)l.cols;
        }
    return weights * 3 * 17 / 32;
}

/* Whether the disk has room for another file of states; a note where it has
 * not. */
static bool has_room(struct run *r, int64_t layer)
{
    double need = (double)store_bytes(r->s) * (r->reference ? 2 : 1), is;
    char dir[PATH_MAX], a[UNIT_TEXT], b[UNIT_TEXT];
    char *slash;
    struct statvfs v;

    snprintf(dir, sizeof(dir), "%s", r->c->hidden);
    slash = strrchr(dir, '/');
    if (slash)
        slash[1] = 0;
    if (statvfs(slash ? dir : ".", &v))
        return true; /* opening the file says why */
    is = (double)v.f_bavail * (double)v.f_frsize - bytes_ahead(r, layer);
    if (is >= need)
        return true;
    if (!r->told)
        remark("'%s': no hidden states of layer %lld to go on from: %s, and "
               "%s are free beside what is to come",
               r->c->hidden, (long long)layer, size_text(a, need),
               size_text(b, is > 0 ? is : 0));
    r->told = true;
    return false;
}

int run_publish(struct run *r, int64_t layer, bool force, struct err *e)
{
    const struct calib *c = r->c;

    if (!c->hidden)
        return 0;
    if (publisher_join(&r->publisher, e) < 0)
        return e->code;
    if (!force &&
        (seconds_now() - r->published < publish_rest(r) || !has_room(r, layer)))
        return 0;
    r->publisher = (struct publisher){ .path = c->hidden,
                                       .key = c->key,
                                       .head = c->head,
                                       .s = r->s,
                                       .reference = r->reference,
                                       .feedback = c->feedback,
                                       .layer = layer,
                                       .mark = r->marks };
    r->published = seconds_now();
    if (publisher_start(&r->publisher, e) < 0)
        return e->code;
    return force ? publisher_join(&r->publisher, e) : 0;
}

int calib_stop_parse(struct calib_stop *to, const char *text,
                     const struct model_config *c, struct err *e)
{
    enum point p = POINT_ATTN_IN;
    char *point;

    to->layer = strtoll(text, &point, 10);
    if (point > text && *point == '.')
        point++;
    else
        to->layer = -1;
    while (p < POINT_OUT && strcmp(point, point_name(p)) != 0)
        p++;
    to->at = p;
    if (to->layer >= 0 && to->layer < c->n_layers) {
        if (!strcmp(point, "all"))
            to->at = POINT_IN;
        else if (p < POINT_OUT ? !point_exists(c, to->layer, p) :
                                 strcmp(point, "experts") != 0 ||
                                     !model_layer_experts(c, to->layer))
            to->layer = -1;
    }
    if (to->layer >= 0 && to->layer < c->n_layers)
        return 0;
    return err_set(e, E_USAGE, "--until: '%s' is no point of the model", text);
}

void run_release(struct run *r)
{
    state_release(&r->state);
    expert_loans_close(&r->loans);
    free(r->tapped);
    buffer_release(&r->rows);
}
