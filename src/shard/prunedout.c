/* prunedout.c - see prunedout.h. */
#include "shard/prunedout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "shard/outdir.h"
#include "shard/splice.h"

enum { HEADER_MAX = 256 };

int pruned_config(const struct expert_map *m, enum expert_mode mode,
                  char **config, struct err *e)
{
    static const char *const count[] = { "n_routed_experts", "num_experts",
                                         "num_local_experts" };
    struct config_edit edit[CONFIG_EDITS_MAX];
    char kept[24], all[24], *out;
    struct json_doc *d;
    size_t n = 0;
    int rc;

    if (json_parse(&d, *config, strlen(*config), "'config.json'", e))
        return e->code;
    snprintf(kept, sizeof(kept), "%" PRId64, m->kept);
    snprintf(all, sizeof(all), "%" PRId64, m->experts);
    for (size_t i = 0; i < ARRAY_LEN(count); i++) {
        int64_t was;

        if (json_int(json_get(json_root(d), count[i]), &was) &&
            was == m->experts)
            edit[n++] = (struct config_edit){ count[i], kept };
    }
    json_free(d);
    if (!n)
        return err_set(e, E_CONFIG,
                       "'config.json' does not say %s experts anywhere", all);
    if (mode == EXPERTS_REMAP) {
        edit[n++] = (struct config_edit){ "num_router_experts", all };
        edit[n++] =
            (struct config_edit){ "expert_map", "\"" EXPERT_MAP_FILE "\"" };
    }
    rc = config_edit(*config, strlen(*config), edit, n, &out, e);
    if (rc)
        return rc;
    free(*config);
    *config = out;
    return 0;
}

/* to = the beginning of the safetensors file: length, JSON header, padding.
 * Returns its size. */
static size_t put_header(char *to, int64_t layers, int64_t experts,
                         size_t bytes)
{
    int n = snprintf(to + 8, HEADER_MAX - 8,
                     "{\"__metadata__\":{\"format\":\"pt\"},\"expert_map\":"
                     "{\"dtype\":\"I32\",\"shape\":[%" PRId64 ",%" PRId64
                     "],\"data_offsets\":[0,%zu]}}",
                     layers, experts, bytes);
    uint64_t len = ((uint64_t)n + 7) / 8 * 8;

    memset(to + 8 + n, ' ', len - (uint64_t)n);
    memcpy(to, &len, sizeof(len));
    return 8 + len;
}

int pruned_map(const struct expert_map *m, const char *model,
               const struct outdir *o, struct err *e)
{
    size_t row = (size_t)m->experts * sizeof(int32_t), bytes, head;
    struct model_config config;
    int64_t layers;
    char *text;
    int rc = model_config_read(&config, model, e);

    if (rc)
        return rc;
    layers = config.n_layers;
    model_config_release(&config);

    if (size_mul((size_t)layers, row, &bytes))
        return err_set(e, E_DATA, "expert map: size overflows");
    text = mem_alloc(HEADER_MAX + bytes, "expert map", e);
    if (!text)
        return e->code;
    head = put_header(text, layers, m->experts, bytes);
    memset(text + head, 0xff, bytes); /* all -1 */
    for (size_t i = 0; i < m->n; i++)
        if (m->layer[i].layer < layers)
            memcpy(text + head + (size_t)m->layer[i].layer * row,
                   m->layer[i].id, row);
    rc = outdir_text(o, EXPERT_MAP_FILE, text, head + bytes, e);
    free(text);
    return rc;
}
