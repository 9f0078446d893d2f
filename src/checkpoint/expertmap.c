/* expertmap.c - see expertmap.h. */
#include "checkpoint/expertmap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "arch/tensor_name.h"
#include "checkpoint/internal.h"
#include "common/io/stream.h"

enum { EXPERTS_MAX = 1 << 16 };

/* ---- reading ---- */

/* New indices must rise from 0 without gaps. */
static int take_ids(struct expert_layer *l, const struct frame *f,
                    int64_t *kept, struct err *e)
{
    const int32_t *id = f->data;
    int32_t n = 0;

    l->id = mem_alloc(f->len, f->name, e);
    l->old = mem_alloc(f->len, f->name, e);
    if (!l->id || !l->old)
        return e->code;
    memcpy(l->id, id, f->len);
    for (uint64_t x = 0; x < f->dims[0]; x++) {
        if (id[x] != -1 && id[x] != n)
            return err_set(e, E_DATA,
                           "'%s': expert %" PRIu64 " becomes %d, want -1 or %d",
                           f->name, x, id[x], n);
        if (id[x] == n)
            l->old[n++] = (int32_t)x;
    }
    *kept = n;
    return 0;
}

static int add(struct expert_map *m, const struct frame *f, struct err *e)
{
    struct expert_layer *l;
    int64_t layer, kept = 0;
    size_t at = m->n;

    layer = tensor_name_layer(f->name);
    if (layer < 0 || f->dtype != DT_I32 || f->ndim != 1 || !f->dims[0] ||
        f->dims[0] > EXPERTS_MAX)
        return err_set(e, E_DATA, "'%s': no map of a layer's experts", f->name);
    if (mem_grow(&m->layer, (m->n + 1) * sizeof(*m->layer), "expert map", e))
        return e->code;
    for (; at > 0 && m->layer[at - 1].layer >= layer; at--)
        m->layer[at] = m->layer[at - 1];
    l = &m->layer[at];
    *l = (struct expert_layer){ .layer = layer };
    m->n++;
    if (take_ids(l, f, &kept, e))
        return e->code;
    if (m->n == 1) {
        m->experts = (int64_t)f->dims[0];
        m->kept = kept;
    }
    if (m->experts != (int64_t)f->dims[0] || m->kept != kept || !kept)
        return err_set(e, E_DATA,
                       "'%s': %" PRId64 " of %" PRIu64 " experts, in other "
                       "layers %" PRId64 " of %" PRId64,
                       f->name, kept, f->dims[0], m->kept, m->experts);
    return 0;
}

int expert_map_read(struct expert_map *m, const char *path, struct err *e)
{
    const struct stream_expect any = { 0 };
    struct stream_reader *r;
    struct frame f;
    int rc;

    *m = (struct expert_map){ 0 };
    if (stream_open(&r, path, &any, e))
        return e->code;
    while ((rc = stream_next(r, &f, e)) > 0)
        if (f.role == ROLE_MAP && add(m, &f, e)) {
            rc = e->code;
            break;
        }
    stream_close(r);
    if (!rc && !m->n)
        rc = err_set(e, E_DATA, "no map of experts in there");
    if (rc) {
        err_prefix(e, "'%s'", path);
        expert_map_release(m);
    }
    return rc;
}

void expert_map_release(struct expert_map *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free(m->layer[i].id);
        free(m->layer[i].old);
    }
    free(m->layer);
    *m = (struct expert_map){ 0 };
}

/* The layer's map; NULL: none.  A layer behind the model's last one, which
 * predicts further tokens and was not calibrated, has the last map. */
static const struct expert_layer *
map_of(const struct expert_map *m, const struct model_config *c, int64_t layer)
{
    if (layer >= c->n_layers && m->n)
        return &m->layer[m->n - 1];
    for (size_t i = 0; i < m->n; i++)
        if (m->layer[i].layer == layer)
            return &m->layer[i];
    return NULL;
}

/* ---- does it fit the model? ---- */

int expert_count_check(const struct model_config *c, int64_t kept,
                       struct err *e)
{
    const struct moe *m = &c->moe;
    int64_t in_group = m->grouped ? kept / m->n_group : kept, layer = 0;

    while (layer < c->n_layers && !model_layer_experts(c, layer))
        layer++;
    if (layer == c->n_layers)
        return err_set(e, E_CONFIG, "the model has no experts%s",
                       m->n_experts ? ": all its layers are dense" : "");
    if (m->n_router != m->n_experts)
        return err_set(e, E_CONFIG,
                       "the model has been pruned with a map (" EXPERT_MAP_FILE
                       "): prune the original instead");
    if (kept < m->top_k || kept > m->n_experts)
        return err_set(e, E_CONFIG,
                       "%" PRId64 " experts: each token wants %" PRId64
                       ", and there are %" PRId64,
                       kept, m->top_k, m->n_experts);
    if (!m->grouped)
        return 0;
    if (kept % m->n_group)
        return err_set(e, E_CONFIG,
                       "%" PRId64 " experts do not make %" PRId64
                       " groups of one size: want %" PRId64 " or %" PRId64,
                       kept, m->n_group, kept - kept % m->n_group,
                       kept - kept % m->n_group + m->n_group);
    if (m->topk_group * in_group < m->top_k)
        return err_set(e, E_CONFIG,
                       "%" PRId64 " experts: the %" PRId64
                       " groups that a token may use have %" PRId64
                       " together, and it wants %" PRId64,
                       kept, m->topk_group, m->topk_group * in_group, m->top_k);
    if (in_group < 2)
        return err_set(e, E_CONFIG,
                       "%" PRId64 " experts: one a group, and routers and "
                       "runtimes compare groups by two",
                       kept);
    return 0;
}

/* expert_count_check(), and m has maps for exactly the layers with experts,
 * each keeping the same number in every group. */
static int check_map(const struct expert_map *m, const struct model_config *c,
                     struct err *e)
{
    int64_t groups = c->moe.grouped ? c->moe.n_group : 1;

    if (expert_count_check(c, m->kept, e))
        return e->code;
    if (m->experts != c->moe.n_experts)
        return err_set(e, E_CONFIG,
                       "the map is of %" PRId64 " experts, the model has "
                       "%" PRId64,
                       m->experts, c->moe.n_experts);
    for (int64_t i = 0; i < c->n_layers; i++)
        if (!model_layer_experts(c, i) != !map_of(m, c, i))
            return err_set(e, E_CONFIG,
                           model_layer_experts(c, i) ?
                               "layer %" PRId64 " has experts, but no map" :
                               "layer %" PRId64 " has a map, but no experts",
                           i);
    for (size_t i = 0; i < m->n; i++)
        for (int64_t k = 0; k < m->kept; k++) {
            int64_t x = m->layer[i].old[k];

            if (x / (m->experts / groups) != k / (m->kept / groups))
                return err_set(e, E_CONFIG,
                               "layer %" PRId64 ": the map does not keep the "
                               "same number in each of %" PRId64 " groups",
                               m->layer[i].layer, groups);
        }
    return 0;
}

/* ---- the pruned view ---- */

/* Whether it is a tensor of the router, with a row for each expert.  inside:
 * its name in the layer, "mlp.gate.weight". */
static bool is_router(const char *inside)
{
    static const char *const tail[] = { "gate.weight",
                                        "gate.bias",
                                        "router.weight",
                                        "router.bias",
                                        "router.layer.weight",
                                        "gate.e_score_correction_bias",
                                        "e_score_correction_bias",
                                        "moe_statics.e_score_correction_bias" };
    const char *dot = strchr(inside, '.');

    for (size_t i = 0; dot && i < ARRAY_LEN(tail); i++)
        if (!strcmp(dot + 1, tail[i]))
            return true;
    return false;
}

static int rename_expert(struct ck_entry *en, struct tensor_name *n, int32_t id,
                         struct err *e)
{
    size_t cap = strlen(en->name) + 16;
    char *name = mem_alloc(cap, "checkpoint", e);

    if (!name)
        return e->code;
    n->expert = id;
    tensor_name_format(n, name, cap);
    free(en->name);
    en->name = name;
    return 0;
}

/* 1: en stays, possibly changed; 0: it is removed.  Counts tensors of experts
 * and routers. */
static int prune_entry(const struct expert_map *m,
                       const struct model_config *config, bool router,
                       struct ck_entry *en, int64_t *experts, int64_t *routers,
                       struct err *e)
{
    const struct expert_layer *l;
    struct tensor_name n;
    int64_t x;

    tensor_name_parse(&n, en->name);
    l = n.layer < 0 ? NULL : map_of(m, config, n.layer);
    if (!l)
        return 1;
    x = n.expert;
    if (x >= 0) {
        if (x >= m->experts)
            return err_set(e, E_DATA,
                           "'%.200s': expert %" PRId64 " of %" PRId64, en->name,
                           x, m->experts);
        ++*experts;
        if (l->id[x] < 0)
            return 0;
        return rename_expert(en, &n, l->id[x], e) ? e->code : 1;
    }
    if (!is_router(n.part.at))
        return 1;
    if (en->ndim < 1 || en->dims[0] != (uint64_t)m->experts || en->scale)
        return err_set(e, E_DATA,
                       "'%.200s': has no row for each of %" PRId64 " experts",
                       en->name, m->experts);
    ++*routers;
    if (router) {
        en->pick = l->old;
        en->n_pick = (uint64_t)m->kept;
    }
    return 1;
}

static int prune_list(struct checkpoint *c, const struct expert_map *m,
                      const struct model_config *config, bool router,
                      struct err *e)
{
    size_t n = c->list.count, kept = 0;
    int64_t experts = 0, routers = 0;
    int r = 1;

    for (size_t i = 0; i < n; i++) {
        struct ck_entry *en = &c->list.item[i];

        if (r >= 0)
            r = prune_entry(m, config, router, en, &experts, &routers, e);
        if (r)
            c->list.item[kept++] = *en;
        else
            free(en->name);
    }
    c->list.count = kept;
    if (r >= 0 &&
        (routers < (int64_t)m->n || experts < m->experts * (int64_t)m->n))
        return err_set(e, E_DATA,
                       "the checkpoint has %" PRId64 " routers and %" PRId64
                       " tensors of experts, for %zu layers of %" PRId64,
                       routers, experts, m->n, m->experts);
    return r < 0 ? r : 0;
}

int checkpoint_prune(struct checkpoint *c, const struct expert_map *m,
                     struct model_config *config, enum expert_mode mode,
                     struct err *e)
{
    int r = check_map(m, config, e);

    if (r || (r = prune_list(c, m, config, mode == EXPERTS_PRUNE, e)))
        return r;
    for (size_t i = 0; i < m->n; i++)
        c->fingerprint = XXH3_64bits_withSeed(
            m->layer[i].id, (size_t)m->experts * sizeof(int32_t),
            c->fingerprint + mode);
    config->moe.n_experts = m->kept;
    return checkpoint_index(c, e);
}

/* ---- EXPERT_MAP_FILE ---- */

int expert_row_check(const int32_t *map, int64_t experts, int64_t kept,
                     struct err *e)
{
    bool *taken = mem_zero((size_t)kept, sizeof(*taken), "expert map", e);
    int64_t n = 0;
    int rc = taken ? 0 : e->code;

    for (int64_t x = 0; x < experts && !rc; x++) {
        int32_t id = map[x];

        if (id < -1 || id >= kept)
            rc = err_set(e, E_DATA, "expert %" PRId64 " becomes %d of %" PRId64,
                         x, id, kept);
        else if (id >= 0 && taken[id])
            rc = err_set(e, E_DATA, "two experts become %d", id);
        else if (id >= 0)
            taken[id] = ++n;
    }
    if (!rc && n != kept)
        rc = err_set(e, E_DATA,
                     "%" PRId64 " experts are kept, %" PRId64 " were to be", n,
                     kept);
    free(taken);
    return rc;
}

/* *map = the tensor of the file, whatever its values. */
static int read_stored(const char *path, const struct model_config *c,
                       int32_t **map, struct err *e)
{
    int64_t layers = c->n_layers, experts = c->moe.n_router;
    const struct ck_tensor *t;
    struct checkpoint *file;
    int r;

    if ((r = checkpoint_open(&file, path, e)))
        return r;
    t = checkpoint_find(file, "expert_map");
    if (!t || t->dtype != DT_I32 || t->ndim != 2 ||
        t->dims[0] != (uint64_t)layers || t->dims[1] != (uint64_t)experts)
        r = err_set(e, E_DATA,
                    "'%s': no tensor 'expert_map', I32 [%" PRId64 ", %" PRId64
                    "]",
                    path, layers, experts);
    else if (!(*map = mem_alloc(t->bytes, "expert map", e)) ||
             checkpoint_read(file, t, *map, e))
        r = e->code;
    checkpoint_close(file);
    return r;
}

int expert_map_stored(const char *dir, const struct model_config *c,
                      int32_t **map, struct err *e)
{
    int64_t experts = c->moe.n_router;
    char path[4200];
    int r;

    *map = NULL;
    if (experts == c->moe.n_experts)
        return 0;
    snprintf(path, sizeof(path), "%.4095s/" EXPERT_MAP_FILE, dir);
    r = read_stored(path, c, map, e);
    for (int64_t i = 0; i < c->n_layers && !r; i++)
        if (model_layer_experts(c, i) &&
            expert_row_check(*map + i * experts, experts, c->moe.n_experts, e))
            r = err_prefix(e, "'%s': layer %" PRId64, path, i);
    if (r) {
        free(*map);
        *map = NULL;
    }
    return r;
}
