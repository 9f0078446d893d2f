/* load.c - see internal.h: vectors and linears of the checkpoint. */
#include <stdio.h>
#include <stdlib.h>

#include "model/internal.h"
#include "w4a16/w4a16.h"

int model_vector(struct model *m, const char *name, int64_t n, float **v,
                 struct err *e)
{
    if (checkpoint_vector(m->ck, name, (uint64_t)n, v, e) < 0)
        return e->code;
    for (int64_t i = 0; m->bf16 && i < n; i++)
        (*v)[i] = f32_from_bf16(bf16_from_f32((*v)[i]));
    return 0;
}

int layer_vector(struct layer *l, const char *part, int64_t n, float **v,
                 struct err *e)
{
    char name[MODULE_PATH_MAX];

    layer_tensor_name(l->index, part, name);
    return model_vector(l->m, name, n, v, e);
}

int layer_vector_there(struct layer *l, const char *part, int64_t n, float **v,
                       struct err *e)
{
    return layer_vector(l, part, n, v, e) < 0 ?
               e->code :
               model_place(l->m, (void **)v, (size_t)n * sizeof(**v), e);
}

int model_norm_vector(struct model *m, const char *name, int64_t n, float **v,
                      struct err *e)
{
    if (model_vector(m, name, n, v, e) < 0)
        return e->code;
    for (int64_t i = 0; m->config.family->norm_plus_one && i < n; i++)
        (*v)[i] += 1;
    return 0;
}

int model_check_shape(const char *module, uint64_t r, uint64_t c, int64_t rows,
                      int64_t cols, struct err *e)
{
    if (r == (uint64_t)rows && c == (uint64_t)cols)
        return 0;
    return err_set(e, E_DATA,
                   "'%s': the weight is %llux%llu, the config says %lldx%lld",
                   module, (unsigned long long)r, (unsigned long long)c,
                   (long long)rows, (long long)cols);
}

void model_tune(struct model *m, const struct tuning *t)
{
    m->tuning = t;
}

const void *model_tuned_there(const struct model *m, const char *module)
{
    return m->tuning && m->on ? m->tuning->there(m->tuning->ctx, module) : NULL;
}

int model_weight(struct model *m, const char *module, int64_t rows,
                 int64_t cols, void **w, struct err *e)
{
    uint64_t r, c;
    float *f = NULL;
    uint16_t *h = NULL;
    int rc = m->tuning ?
                 m->tuning->weights(m->tuning->ctx, module, rows, cols, &f, e) :
                 0;

    if (rc > 0)
        *w = f;
    if (rc)
        return rc < 0 ? rc : 0;
    rc = m->bf16 ? checkpoint_linear_bf16(m->ck, module, &h, &r, &c, e) :
                   checkpoint_linear(m->ck, module, &f, &r, &c, e);
    if (rc < 0)
        return rc;
    *w = m->bf16 ? (void *)h : (void *)f;
    rc = model_check_shape(module, r, c, rows, cols, e);
    if (rc < 0) {
        free(*w);
        *w = NULL;
    }
    return rc;
}

/* Load linear l->of for a device that widens it.  1; 0: it is stored otherwise. */
static int load_fp8(struct model *m, struct loaded *l, struct err *e)
{
    const struct linear *k = &l->of;
    int rc = m->on && m->bf16 ?
                 checkpoint_linear_fp8(m->ck, k->module, &l->fp8, e) :
                 0;

    if (rc <= 0) {
        l->fp8.data = NULL;
        return rc;
    }
    return model_check_shape(k->module, l->fp8.rows, l->fp8.cols, k->rows,
                             k->cols, e) < 0 ?
               e->code :
               1;
}

/* Load linear l->of from the checkpoint, as 4-bit codes if it is stored so, and for a
 * device as 8-bit floats. */
static int load_stored(struct model *m, struct loaded *l, struct err *e)
{
    const struct linear *k = &l->of;
    struct ck_words *w = &l->words;
    int rc;

    l->w = (void *)(uintptr_t)model_tuned_there(m, k->module);
    l->borrowed = l->w;
    if (m->tuning)
        return l->w ? 0 :
                      model_weight(m, k->module, k->rows, k->cols, &l->w, e);
    rc = load_fp8(m, l, e);
    if (rc)
        return rc < 0 ? rc : 0;
    rc = checkpoint_words(m->ck, k->module, w, e);
    if (rc < 0)
        return rc;
    if (!rc)
        return model_weight(m, k->module, k->rows, k->cols, &l->w, e);
    if (model_check_shape(k->module, (uint64_t)w->of.outputs,
                          (uint64_t)w->of.inputs, k->rows, k->cols, e) < 0)
        return e->code;
    if (m->on)
        return 0;
    if (w4_prepare(&l->q, &w->of, e) < 0)
        return err_prefix(e, "'%.200s'", k->module);
    w4_own_codes(l->q, w->codes);
    w->codes = NULL;
    ck_words_release(w);
    return 0;
}

int model_read_linear(struct model *m, const struct quantized *codes,
                      struct loaded *l, struct err *e)
{
    const struct linear *k = &l->of;
    char name[MODULE_PATH_MAX + 8];
    int rc = 0;

    l->codes = (struct forward_codes){ .dtype = m->dtype };
    if (codes && m->on && k->cols % 8 == 0)
        rc = quantized_codes(codes, k->module, k->rows, k->cols, &l->codes, e);
    if (codes && !rc)
        rc = quantized_linear(codes, k->module, k->rows, k->cols, m->dtype,
                              &l->w, e);
    if (rc < 0 || (!rc && load_stored(m, l, e) < 0))
        return e->code;
    if (!k->bias)
        return 0;
    snprintf(name, sizeof(name), "%s.bias", k->module);
    return model_vector(m, name, k->rows, &l->bias, e);
}

int model_load_linear(struct model *m, const struct quantized *codes,
                      struct loaded *l, struct err *e)
{
    return model_read_linear(m, codes, l, e) < 0 ? e->code :
                                                   loaded_place(m, l, e);
}

int layer_linear(struct layer *l, const char *part, int64_t rows, int64_t cols,
                 struct loaded *to, struct err *e)
{
    to->of = (struct linear){
        .layer = l->index, .expert = -1, .rows = rows, .cols = cols
    };
    layer_tensor_name(l->index, part, to->of.module);
    return model_load_linear(l->m, NULL, to, e);
}

void loaded_release(struct loaded *l)
{
    if (l->borrowed)
        l->w = NULL;
    if (l->placed) {
        model_free(l->placed, l->w);
        model_free(l->placed, l->bias);
        l->placed->on->drop(l->placed->context, l->on_device);
    } else {
        free(l->w);
        free(l->bias);
    }
    forge_w4a16_release(l->q);
    ck_words_release(&l->words);
    loaded_release_fp8(l);
    l->w = NULL;
    l->q = NULL;
    l->on_device = NULL;
    l->bias = NULL;
    l->placed = NULL;
    l->borrowed = false;
}
