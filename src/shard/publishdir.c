/* publishdir.c - see publishdir.h.
 *
 * Order of writing: shards, small files, configs, and the index last, so that a
 * reader of the unfinished directory finds no index. */
#include "shard/publishdir.h"

#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "checkpoint/sidecar.h"
#include "common/io/file.h"
#include "common/io/json.h"
#include "shard/card.h"
#include "shard/complete.h"
#include "checkpoint/digests.h"
#include "shard/outdir.h"
#include "shard/prunedout.h"
#include "shard/quantout.h"
#include "shard/splice.h"
#include "shard/writeshards.h"

enum { CONFIG_MAX = 16 * 1024 * 1024 };

static const char index_name[] = "model.safetensors.index.json";

/* ---- before anything is written ---- */

static int names_of_plan(struct named_set *set, const struct collection *c,
                         struct err *e)
{
    set->n = c->n;
    set->item = mem_alloc(c->n * sizeof(*set->item), "names", e);
    if (!set->item)
        return e->code;
    for (size_t i = 0; i < c->n; i++) {
        const struct out_tensor *t = &c->tensor[i];

        set->item[i] = (struct named){ t->name, t->dtype, t->ndim, t->dims };
    }
    named_sort(set);
    return 0;
}

/* Call the language model of a multimodal checkpoint as the source does. */
static int stored_names(struct collection *c, const struct checkpoint *source,
                        struct err *e)
{
    char name[1024], *copy;

    for (size_t i = 0; i < c->n; i++) {
        checkpoint_stored_name(source, c->tensor[i].name, name, sizeof(name));
        if (!strcmp(name, c->tensor[i].name))
            continue;
        copy = mem_text(name, strlen(name), "names", e);
        if (!copy)
            return e->code;
        free(c->tensor[i].name);
        c->tensor[i].name = copy;
    }
    return 0;
}

/* Check that the set is complete; *dict = its quantization_config.  Then the
 * tensors get the names that they have in the files. */
static int check_and_describe(const struct publication *p, struct collection *c,
                              char **dict, struct err *e)
{
    struct model_config config = { 0 };
    struct checkpoint *source = NULL;
    struct named_set out = { 0 }, from = { 0 };
    struct plain_list plain = { 0 };
    struct mixed_grids mixed = { 0 };
    struct completeness want = { .config = &config,
                                 .source = &from,
                                 .facts = c->packed ? &c->facts : NULL };
    int rc = 0;

    *dict = NULL;
    if (model_config_read(&config, p->model, e) ||
        checkpoint_open(&source, p->model, e) ||
        (p->map && checkpoint_prune(source, p->map, &config, p->mode, e)))
        rc = e->code;
    config.kv_b = config.mla.kv_lora; /* 4-bit or not */
    if (rc || named_from_checkpoint(&from, source, e) ||
        names_of_plan(&out, c, e) || complete_check(&want, &out, e))
        rc = e->code;
    if (!rc && c->packed &&
        (plain_collect(&plain, &out, &config, &c->facts, e) ||
         mixed_collect(&mixed, &out, &config, &c->facts, e) ||
         quant_dict(&c->facts, &plain, &mixed, dict, e)))
        rc = e->code;
    if (!rc)
        rc = stored_names(c, source, e);
    mixed_release(&mixed);
    plain_release(&plain);
    free(out.item);
    free(from.item);
    checkpoint_close(source);
    model_config_release(&config);
    return rc;
}

/* ---- writing ---- */

/* Copy a file of the model that is needed unchanged (tokenizer etc.). */
static int copy_sidecar(const struct outdir *o, const struct modeldir *from,
                        const char *name, struct err *e)
{
    char *text;
    size_t len;
    int rc = modeldir_slurp(from, name, SIDECAR_MAX, &text, &len, e);

    if (rc)
        return rc;
    rc = outdir_text(o, name, text, len, e);
    free(text);
    return rc;
}

static int copy_sidecars(const struct publication *p, const struct outdir *o,
                         const struct modeldir *from, bool code, struct err *e)
{
    struct sidecars s;
    int rc = sidecars_list(&s, from, code, !p->map, e);

    for (size_t i = 0; !rc && i < s.n; i++)
        rc = copy_sidecar(o, from, s.name[i], e);
    sidecars_release(&s);
    return rc;
}

/* Write config.json, and for GPTQ quantize_config.json, which AutoGPTQ
 * reads. */
static int write_configs(const struct publication *p, const struct outdir *o,
                         const struct collection *c, const char *dict,
                         struct err *e)
{
    struct modeldir dir;
    char *text = NULL, *spliced = NULL;
    size_t len = 0;
    bool code, gptq = c->packed && (c->facts.layout == LAYOUT_GPTQ ||
                                    c->facts.layout == LAYOUT_GPTQ_V2);
    int rc = modeldir_open(&dir, p->model, e);

    if (rc)
        return rc;
    rc = modeldir_slurp(&dir, "config.json", CONFIG_MAX, &text, &len, e);
    if (!rc)
        rc = config_splice(text, len, dict, &spliced, e);
    if (!rc && p->map)
        rc = pruned_config(p->map, p->mode, &spliced, e);
    if (!rc && p->map && p->mode == EXPERTS_REMAP)
        rc = pruned_map(p->map, p->model, o, e);
    code = !rc && strstr(text, "\"auto_map\"") != NULL;
    if (!rc)
        rc = copy_sidecars(p, o, &dir, code, e);
    modeldir_close(&dir);
    if (!rc && gptq)
        rc = outdir_text(o, "quantize_config.json", dict, strlen(dict), e);
    if (!rc)
        rc = outdir_text(o, "config.json", spliced, strlen(spliced), e);
    free(text);
    free(spliced);
    return rc;
}

static int write_card(const struct outdir *o, const struct collection *c,
                      const char *base, const struct modeldir *model,
                      struct err *e)
{
    char *recipe = provenance_recipe(&c->about, "\n", e);
    struct card card = { .base = base,
                         .about = &c->about,
                         .recipe = recipe,
                         .facts = c->packed ? &c->facts : NULL,
                         .tensors = c->n,
                         .bytes = c->bytes };
    char *text;
    size_t len;
    int rc;

    if (!recipe)
        return e->code;
    for (size_t i = 0; i < c->n; i++) {
        const char *part = strrchr(c->tensor[i].name, '.');

        card.experts |= tensor_name_is_expert(c->tensor[i].name);
        card.zeros |= part && !strcmp(part, ".weight_zero_point");
    }
    rc = card_write(&card, model, &text, &len, e);
    free(recipe);
    if (rc)
        return rc;
    rc = outdir_text(o, CARD_FILE, text, len, e);
    free(text);
    return rc;
}

/* Write the lists of digests; SHA256SUMS last, since it lists all other
 * files. */
static int write_lists(const struct outdir *o, const struct shard_plan *plan,
                       struct err *e)
{
    char *text;
    size_t len;
    int rc;

    if (shard_checksums(plan, &text, &len, e))
        return e->code;
    rc = outdir_text(o, CHECKSUMS_FILE, text, len, e);
    free(text);
    if (rc || digests_text(o->digests, &text, &len, e))
        return e->code;
    rc = outdir_text(o, SUMS_FILE, text, len, e);
    free(text);
    return rc;
}

static int write_index(const struct outdir *o, const struct shard_plan *plan,
                       struct err *e)
{
    char *text;
    size_t len;
    int rc;

    if (plan->n == 1) /* a single file needs no index */
        return 0;
    if (shard_index(plan, &text, &len, e))
        return e->code;
    rc = outdir_text(o, index_name, text, len, e);
    free(text);
    return rc;
}

/* Write all files, in the order above. */
static int write_all(const struct publication *p, const struct outdir *o,
                     struct collection *c, const struct shard_plan *plan,
                     const char *dict, struct err *e)
{
    char *base = NULL, *metadata = NULL;
    struct modeldir model;
    int rc = modeldir_open(&model, p->model, e);

    if (rc)
        return rc;
    base = card_base(&model, e);
    if (base)
        c->about.before = card_recipe(&model, e);
    rc = base && !e->code ?
             provenance_metadata(&c->about, c->packed ? &c->facts : NULL,
                                 &metadata, e) :
             e->code;
    if (!rc && !(rc = write_shards(plan, c, o, metadata, p->progress, e)) &&
        !(rc = write_configs(p, o, c, dict, e)) &&
        !(rc = write_card(o, c, base, &model, e)) &&
        !(rc = write_index(o, plan, e)))
        rc = write_lists(o, plan, e);
    free(metadata);
    free(base);
    modeldir_close(&model);
    return rc;
}

int publish_checkpoint(const struct publication *p, const struct outdir *o,
                       struct collection *c, int *shards,
                       struct verify_report *r, struct err *e)
{
    const struct verify v = { .dir = o->tmp.path,
                              .source = p->model,
                              .facts = c->packed ? &c->facts : NULL,
                              .sample = p->sample,
                              .map = p->map,
                              .mode = p->mode };
    struct shard_plan plan = { 0 };
    char *dict = NULL;
    int rc;

    rc = check_and_describe(p, c, &dict, e);
    if (!rc)
        rc = shard_plan(&plan, c, p->shard_size, e);
    p->progress->total = c->n;
    if (!rc)
        rc = write_all(p, o, c, &plan, dict, e);
    if (!rc && verify_checkpoint(&v, r, e))
        rc = err_prefix(e, "verification");
    *shards = plan.n;
    free(dict);
    shard_plan_release(&plan);
    return rc;
}
