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
#include "shard/order.h"
#include "checkpoint/digests.h"
#include "shard/outdir.h"
#include "shard/prunedout.h"
#include "shard/quantout.h"
#include "shard/splice.h"
#include "shard/writeshards.h"

enum { CONFIG_MAX = 16 * 1024 * 1024 };

static const char index_name[] = "model.safetensors.index.json";

struct publisher {
    const struct publication *p;
    const struct outdir *o;
    struct model_config config;
    struct checkpoint *source;
    struct collection c, others; /* what comes; what the source has */
    struct arrival arrival;
    uint64_t waiting, enough; /* bytes of parts in c; when to look for shards */
    struct shard_plan plan;
    struct shard_writer *writer;
    struct card_linears linears;
    char *metadata; /* of the shards that are written first */
};

/* ---- before anything is written ---- */

/* The names of all tensors.  E_DATA: one came twice. */
static int names_of_plan(struct named_set *set, const struct shard_plan *plan,
                         struct err *e)
{
    set->item =
        mem_alloc(shard_plan_tensors(plan) * sizeof(*set->item), "names", e);
    if (!set->item)
        return e->code;
    for (int i = 0; i < plan->n; i++)
        for (size_t k = 0; k < plan->shard[i]->n; k++) {
            const struct out_tensor *t = &plan->shard[i]->first[k];

            set->item[set->n++] =
                (struct named){ t->name, t->dtype, t->ndim, t->dims };
        }
    named_sort(set);
    for (size_t i = 1; i < set->n; i++)
        if (!strcmp(set->item[i - 1].name, set->item[i].name))
            return err_set(e, E_DATA, "tensor '%s' came twice",
                           set->item[i].name);
    return 0;
}

/* Move the first tensors of c into shards (shard_plan_take()), which call the language
 * model of a multimodal checkpoint as the source does. */
static int take_shards(struct publisher *u, struct collection *c, size_t ready,
                       bool last, struct err *e)
{
    char name[1024];

    for (size_t i = 0; i < ready; i++) {
        struct out_tensor *t = &c->tensor[i];

        if (t->stored)
            continue;
        checkpoint_stored_name(u->source, t->name, name, sizeof(name));
        t->stored = mem_text(name, strlen(name), "names", e);
        if (!t->stored)
            return e->code;
    }
    return shard_plan_take(&u->plan, c, ready, last, u->p->shard_size, e);
}

static void sort(struct collection *c)
{
    if (c->n)
        qsort(c->tensor, c->n, sizeof(*c->tensor), order_compare);
}

/* Count the linears that are quantized, for the card. */
static void count_linears(struct publisher *u, const struct named_set *out)
{
    struct packed_walk w = { .out = out,
                             .config = &u->config,
                             .facts = &u->c.facts };
    struct card_linears *to = &u->linears;

    while (packed_next(&w)) {
        *(w.grid.bits == 8 ? &to->eight : &to->four) += 1;
        to->whole += (uint64_t)w.l.cols <= w.grid.group;
        to->weights += (uint64_t)w.l.rows * (uint64_t)w.l.cols;
    }
    for (int i = 0; i < u->plan.n; i++)
        for (size_t k = 0; k < u->plan.shard[i]->n; k++)
            if (u->plan.shard[i]->first[k].layer >= 0)
                to->bytes += u->plan.shard[i]->first[k].bytes;
}

/* Check that the set is complete; *dict = its quantization_config. */
static int check_and_describe(struct publisher *u, char **dict, struct err *e)
{
    const struct run_facts *facts = u->c.packed ? &u->c.facts : NULL;
    struct named_set out = { 0 }, from = { 0 };
    struct plain_list plain = { 0 };
    struct mixed_grids mixed = { 0 };
    struct completeness want = { .config = &u->config,
                                 .source = &from,
                                 .facts = facts,
                                 .headless = checkpoint_headless(u->source) };
    int rc = 0;

    *dict = NULL;
    if (named_from_checkpoint(&from, u->source, e) ||
        names_of_plan(&out, &u->plan, e) || complete_check(&want, &out, e))
        rc = e->code;
    if (!rc && facts &&
        (plain_collect(&plain, &out, &u->config, checkpoint_bare(u->source),
                       facts, e) ||
         mixed_collect(&mixed, &out, &u->config, facts, e) ||
         quant_dict(facts, &plain, &mixed, dict, e)))
        rc = e->code;
    if (!rc && facts)
        count_linears(u, &out);
    u->linears.differ = mixed.n > 0;
    mixed_release(&mixed);
    plain_release(&plain);
    free(out.item);
    free(from.item);
    return rc;
}

/* ---- while tensors come ---- */

/* *metadata = that of the files, as far as is known. */
static int describe(struct publisher *u, const struct modeldir *model,
                    char **metadata, struct err *e)
{
    if (!u->c.about.before && !u->c.about.made.recipe) {
        e->code = 0;
        u->c.about.before = card_recipe(model, e);
        if (e->code)
            return e->code;
    }
    return provenance_metadata(&u->c.about, u->c.packed ? &u->c.facts : NULL,
                               metadata, e);
}

/* What shards say that are written before all has come. */
static int settle_metadata(struct publisher *u, struct err *e)
{
    struct modeldir model;
    int rc;

    if (u->metadata || !u->plan.n)
        return 0;
    rc = modeldir_open(&model, u->p->model, e);
    if (rc)
        return rc;
    rc = describe(u, &model, &u->metadata, e);
    modeldir_close(&model);
    return rc;
}

/* Move the tensors before which nothing can come any more into shards. */
static int close_shards(struct publisher *u, struct err *e)
{
    struct collection *c = &u->c;
    size_t ready = 0;

    sort(c);
    while (ready < c->n && arrival_passed(&u->arrival, &c->tensor[ready]))
        ready++;
    if (take_shards(u, c, ready, false, e))
        return e->code;
    u->waiting = 0;
    for (size_t i = 0; i < c->n && c->tensor[i].layer >= 0; i++)
        u->waiting += c->tensor[i].bytes;
    u->enough = u->waiting + u->p->shard_size / 16;
    if (u->enough < u->p->shard_size)
        u->enough = u->p->shard_size;
    return settle_metadata(u, e);
}

/* Whether tensors of so many bytes that are no parts of linears have shards of their own:
 * not if all that has come fits one. */
static bool apart(const struct publisher *u, uint64_t bytes)
{
    return bytes > u->p->shard_size / 16 && u->c.bytes > u->p->shard_size;
}

/* Those of the source can be written then, beside the work on the linears. */
static int close_others(struct publisher *u, struct err *e)
{
    int first = u->plan.n;

    if (!u->others.n || !apart(u, u->others.bytes))
        return 0;
    sort(&u->others);
    if (take_shards(u, &u->others, u->others.n, true, e))
        return e->code;
    for (int i = first; i < u->plan.n; i++)
        u->plan.shard[i]->behind = true;
    return settle_metadata(u, e);
}

static int go_on(void *ctx, struct err *e)
{
    struct publisher *u = ctx;

    return shard_writer_go_on(u->writer, u->metadata, e);
}

/* A tensor has come. */
static int taken(void *ctx, struct err *e)
{
    struct publisher *u = ctx;
    const struct out_tensor *t = &u->c.tensor[u->c.n - 1];

    if (t->layer >= 0)
        u->waiting += t->bytes;
    arrival_add(&u->arrival, t);
    if (u->c.packed && close_others(u, e))
        return e->code;
    if (u->c.packed && u->waiting > u->enough && close_shards(u, e))
        return e->code;
    return go_on(u, e);
}

int publisher_pipe(struct publisher *u, const struct stream_expect *expect,
                   struct err *e)
{
    const struct collect_calls calls = { taken, go_on, u };

    return collect_pipe(&u->c, u->o->tmp.path, expect, &calls, e);
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

static int write_card(const struct publisher *u, const char *base,
                      const struct modeldir *model, struct err *e)
{
    const struct collection *c = &u->c;
    const struct shard_plan *plan = &u->plan;
    char *recipe = provenance_recipe(&c->about, "\n", e);
    struct card card = { .base = base,
                         .about = &c->about,
                         .recipe = recipe,
                         .facts = c->packed ? &c->facts : NULL,
                         .linears = u->linears,
                         .tensors = shard_plan_tensors(plan),
                         .bytes = c->bytes };
    char *text;
    size_t len;
    int rc;

    if (!recipe)
        return e->code;
    for (int i = 0; i < plan->n; i++)
        for (size_t k = 0; k < plan->shard[i]->n; k++) {
            const char *name = plan->shard[i]->first[k].stored;
            const char *part = strrchr(name, '.');

            card.experts |= tensor_name_is_expert(name);
            card.zeros |= part && !strcmp(part, ".weight_zero_point");
        }
    rc = card_write(&card, model, &text, &len, e);
    free(recipe);
    if (rc)
        return rc;
    rc = outdir_text(u->o, CARD_FILE, text, len, e);
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

/* Write all files that are not yet written, in the order above. */
static int write_all(struct publisher *u, const char *dict, struct err *e)
{
    char *base = NULL, *metadata = NULL;
    struct modeldir model;
    int rc = modeldir_open(&model, u->p->model, e);

    if (rc)
        return rc;
    base = card_base(&model, e);
    rc = base ? describe(u, &model, &metadata, e) : e->code;
    if (!rc && !(rc = shard_writer_finish(u->writer, metadata, e)) &&
        !(rc = write_configs(u->p, u->o, &u->c, dict, e)) &&
        !(rc = write_card(u, base, &model, e)) &&
        !(rc = write_index(u->o, &u->plan, e)))
        rc = write_lists(u->o, &u->plan, e);
    free(metadata);
    free(base);
    modeldir_close(&model);
    return rc;
}

/* Move all that is left into shards. */
static int take_all(struct publisher *u, struct err *e)
{
    struct collection *c = &u->c, *o = &u->others;
    uint64_t bytes = 0;
    size_t parts = 0;

    if (o->n &&
        mem_grow(&c->tensor, (c->n + o->n) * sizeof(*c->tensor), "tensors", e))
        return e->code;
    if (o->n)
        memcpy(c->tensor + c->n, o->tensor, o->n * sizeof(*o->tensor));
    c->n += o->n;
    o->n = 0;
    sort(c);
    while (parts < c->n && c->tensor[parts].layer >= 0)
        parts++;
    for (size_t i = parts; i < c->n; i++)
        bytes += c->tensor[i].bytes;
    if (parts && apart(u, bytes) && take_shards(u, c, parts, true, e))
        return e->code;
    return take_shards(u, c, c->n, true, e);
}

int publisher_finish(struct publisher *u, int *shards, struct verify_report *r,
                     struct err *e)
{
    const struct publication *p = u->p;
    const struct verify v = { .dir = u->o->tmp.path,
                              .source = p->model,
                              .facts = u->c.packed ? &u->c.facts : NULL,
                              .sample = p->sample,
                              .map = p->map,
                              .mode = p->mode };
    char *dict = NULL;
    int rc;

    rc = take_all(u, e);
    if (!rc)
        rc = check_and_describe(u, &dict, e);
    if (!rc)
        rc = write_all(u, dict, e);
    checkpoint_close(u->source);
    u->source = NULL;
    if (!rc && verify_checkpoint(&v, r, e))
        rc = err_prefix(e, "verification");
    *shards = u->plan.n;
    free(dict);
    return rc;
}

struct collection *publisher_collection(struct publisher *u)
{
    return &u->c;
}

/* The source's tensors that do not come. */
static int list_others(struct publisher *u, struct err *e)
{
    const struct weights_choice choice = { .layer = -1,
                                           .others = true,
                                           .quantized = *u->p->quantized };
    struct weights_plan plan;
    int rc;

    module_choice_apply(&choice.quantized, &u->config);
    rc = weights_plan(&plan, u->source, &u->config, &choice, e);
    if (!rc)
        rc = collect_others(&u->others, &plan, e);
    u->c.source = u->source;
    u->c.bytes = u->others.bytes;
    weights_release(&plan);
    return rc;
}

int publisher_open(struct publisher **u, const struct publication *p,
                   const struct outdir *o, struct err *e)
{
    struct publisher *w = *u = mem_zero(1, sizeof(**u), "checkpoint", e);

    if (!w)
        return e->code;
    w->p = p;
    w->o = o;
    w->enough = p->shard_size;
    if (model_config_read(&w->config, p->model, e) ||
        checkpoint_open(&w->source, p->model, e) ||
        (p->map &&
         checkpoint_prune(w->source, p->map, &w->config, p->mode, e)) ||
        (p->quantized && list_others(w, e)))
        return e->code;
    w->config.kv_b = w->config.mla.kv_lora; /* 4-bit or not */
    if (arrival_open(&w->arrival, &w->config, p->in_order, e))
        return e->code;
    for (size_t i = 0; i < w->others.n; i++)
        arrival_add(&w->arrival, &w->others.tensor[i]);
    return shard_writer_open(&w->writer, &w->plan, &w->c, o, p->progress, e);
}

void publisher_close(struct publisher *u)
{
    if (!u)
        return;
    shard_writer_close(u->writer);
    shard_plan_release(&u->plan);
    collection_release(&u->c);
    collection_release(&u->others);
    arrival_release(&u->arrival);
    checkpoint_close(u->source);
    model_config_release(&u->config);
    free(u->metadata);
    free(u);
}
