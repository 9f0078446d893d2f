/* open.c - see model.h: opens and closes a model. */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/lacks.h"
#include "checkpoint/expertmap.h"
#include "common/cli/units.h"
#include "common/math/lanes.h"
#include "device/device.h"
#include "model/internal.h"

int model_open(struct model **out, const char *dir, enum dtype dtype,
               struct err *e)
{
    struct model *m = mem_zero(1, sizeof(*m), "model", e);

    if (!m)
        return e->code;
    m->dtype = dtype;
    m->bf16 = dtype == DT_BF16;
    m->size = m->bf16 ? 2 : 4;
    m->k = kernels_best();
    if (model_config_read(&m->config, dir, e) < 0 ||
        checkpoint_open(&m->ck, dir, e) < 0 ||
        expert_map_stored(dir, &m->config, &m->expert_map, e) < 0) {
        model_close(m);
        return e->code;
    }
    m->scale = (float)m->config.attention_scale;
    *out = m;
    return 0;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    model_release_embedding(m);
    rope_table_release(&m->rope);
    rope_table_release(&m->local_rope);
    for (int i = 0; i < 2; i++)
        model_buffer_release(m, &m->angles[i]);
    buffer_release(&m->growth);
    model_buffer_release(m, &m->growth_there);
    model_buffer_release(m, &m->q);
    model_buffer_release(m, &m->key);
    model_buffer_release(m, &m->value);
    model_buffer_release(m, &m->latent);
    model_buffer_release(m, &m->both);
    model_buffer_release(m, &m->side[0]);
    model_buffer_release(m, &m->side[1]);
    model_buffer_release(m, &m->keys);
    model_buffer_release(m, &m->values);
    buffer_release(&m->blocks);
    buffer_release(&m->index_q);
    buffer_release(&m->index_k);
    buffer_release(&m->index_share);
    buffer_release(&m->index_position);
    buffer_release(&m->index_keys);
    buffer_release(&m->seen);
    checkpoint_close(m->ck);
    model_config_release(&m->config);
    free(m->expert_map);
    free(m);
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

const struct remap_counts *model_remapped(const struct model *m)
{
    return m->expert_map ? &m->remapped : NULL;
}

enum dtype model_dtype(const struct model *m)
{
    return m->dtype;
}

int model_check(const struct model *m, const void *p, int64_t n, bool *finite,
                struct err *e)
{
    *finite = true;
    if (m->on)
        return m->on->finite(m->context, m->dtype, p, n, finite, e);
    *finite = lanes_all_finite(p, m->dtype, (uint64_t)n);
    return 0;
}

/* ---- the device ---- */

struct plugin_table forward_plugin = { FORWARD_TABLE, FORWARD_TABLE_VERSION,
                                       NULL };

int device_fits(const struct forward_table *on, struct cuda_context *c,
                const char *what, double need, struct err *e)
{
    char a[UNIT_TEXT], b[UNIT_TEXT];
    size_t room;

    if (on->room(c, &room, e) < 0)
        return e->code;
    return need > (double)room ?
               err_set(e, E_TEMP, "cuda: %s %s of GPU memory, there are %s",
                       what, size_text(a, need), size_text(b, (double)room)) :
               0;
}

int model_check_lacks(const struct model *m, int64_t tokens, struct err *e)
{
    const char *lacks = model_device_lacks(&m->config, tokens);

    return lacks ? err_set(e, E_CONFIG,
                           "cuda: layers of %s have %s, which is not supported "
                           "there",
                           m->config.family->model_type, lacks) :
                   0;
}

void model_list_kv_b(struct model *m)
{
    m->config.kv_b = m->config.mla.kv_lora;
}

int model_run_on(struct model *m, const struct forward_table *on,
                 struct cuda_context *c, struct err *e)
{
    if (model_check_lacks(m, 0, e) < 0)
        return e->code;
    if (device_fits(on, c, "a layer takes", model_device_bytes(m), e) < 0)
        return e->code;
    m->on = on;
    m->context = c;
    return 0;
}

int model_use_device(struct model *m, int64_t longest, struct err *e)
{
    struct cuda_context *c = device_gpu();
    int rc = c ? model_check_lacks(m, longest, e) : 0;

    if (c && rc >= 0)
        rc = model_run_on(m, forward_functions(), c, e);

    return rc < 0 && device_declined(&rc, e) ? 0 : rc;
}
