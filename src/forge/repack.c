/* repack.c - forge repack: a 4-bit checkpoint in another layout.
 *
 *     forge-weights --linears IN | forge-pack --layout X | forge-shard --others --from IN OUT
 *
 * Codes, zeros and scales stay those of IN.  Values that X cannot hold are
 * found before any work, from the zeros, scales and g_idx of every linear; the
 * codes, nearly all of the bytes, are not read for that. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "arch/config.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/digests.h"
#include "checkpoint/sidecar.h"
#include "checkpoint/weights.h"
#include "common/math/quant.h"
#include "forge/arguments.h"
#include "forge/command.h"
#include "forge/disk.h"
#include "forge/pipes.h"
#include "gguf/convert.h"
#include "layout/layout.h"

struct repack {
    enum layout layout;
    enum int4pack_capability capability;
    int64_t threads;
    uint64_t shard_size;
    int quiet, progress;
    bool act_order; /* of some linear, groups are no runs of inputs */
    uint64_t group; /* of the first linear; 0: none yet */
    uint64_t cols;  /* of the first linear */
    int bits;       /* of the first linear */
    bool symmetric; /* of the first linear: all its zeros are in the middle */
    bool mixed;     /* others differ */
    bool gguf;      /* one file, which forge-gguf checks and writes */
    int rest;       /* of --rest */
    uint64_t moved; /* linears some of whose weights int4pack rounds */
};

/* E_CONFIG: a BF16 scale that AWQ's and GPTQ's F16 does not hold exactly. */
static int check_scales(const struct repack *r, const char *module,
                        const struct ck_quantized *q, struct err *e)
{
    uint64_t n = q->rows * q->groups;
    size_t size = dtype_bits(q->scale_dtype) / 8;

    if (q->scale_dtype == DT_F16 ||
        (q->scale_dtype == DT_BF16 && layout_takes_bf16(r->layout)))
        return 0;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h;
        float s;

        if (!to_f32(&s, (const char *)q->scales + i * size, q->scale_dtype, 1))
            return err_set(e, E_BUG, "'%.200s': scales are no floats", module);
        if (!f16_holds(s, &h))
            return err_set(e, E_CONFIG,
                           "'%.200s': the scale of output %" PRIu64
                           ", group %" PRIu64 " is %.9g, which F16 does not "
                           "hold: %s would change it%s",
                           module, i / q->groups, i % q->groups, (double)s,
                           layout_name(r->layout),
                           q->scale_dtype == DT_BF16 ?
                               "; compressed-tensors and int4pack have BF16 "
                               "scales" :
                               "");
    }
    return 0;
}

/* int4pack stores (8 - zero) * scale in place of a zero, rounded to the scale's type.
 * E_CONFIG: this one does not fit the type. */
static int check_offsets(struct repack *r, const char *module,
                         const struct ck_quantized *q, struct err *e)
{
    enum dtype t = q->scale_dtype == DT_BF16 ? DT_BF16 : DT_F16;
    size_t size = dtype_bits(q->scale_dtype) / 8;
    uint16_t scale, offset;
    bool moved = false;
    float s, stored[2] = { 0 };

    for (uint64_t i = 0; i < q->rows * q->groups; i++) {
        if (!to_f32(&s, (const char *)q->scales + i * size, q->scale_dtype, 1))
            return err_set(e, E_BUG, "'%.200s': scales are no floats", module);
        scale = t == DT_BF16 ? bf16_from_f32(s) : f16_from_f32(s);
        if (!int4pack_offset(&offset, scale, t, q->zeros[i]))
            return err_set(e, E_CONFIG,
                           "'%.200s': of output %" PRIu64 ", group %" PRIu64
                           ", the scale times 8 less the zero, %d, is beyond "
                           "%s: int4pack cannot hold it",
                           module, i / q->groups, i % q->groups, q->zeros[i],
                           dtype_name(t));
        moved |= !to_f32(&stored[0], &scale, t, 1) ||
                 !to_f32(&stored[1], &offset, t, 1) ||
                 stored[1] != (float)(8 - q->zeros[i]) * stored[0];
    }
    r->moved += moved;
    return 0;
}

/* Groups that are no runs of inputs: GPTQ and compressed-tensors say each
 * input's, layouts of torch have an order of inputs beside the codes. */
static int check_order(struct repack *r, const char *module,
                       const struct ck_quantized *q, struct err *e)
{
    int32_t *order;
    bool whole;

    if (!q->g_idx)
        return 0;
    r->act_order = true;
    if (!layout_takes_act_order(r->layout))
        return err_set(e, E_CONFIG,
                       "'%.200s': its g_idx mixes groups (desc_act): inputs of "
                       "a group lie apart, and %s has them side by side; "
                       "gptq, gptq_v2 and int4pack keep an order",
                       module, layout_name(r->layout));
    if (r->layout != LAYOUT_INT4PACK && r->layout != LAYOUT_INT4PACK_XPU)
        return 0;
    order = mem_alloc(q->cols * sizeof(*order), module, e);
    if (!order)
        return e->code;
    whole = int4pack_order(order, q->g_idx, q->cols, q->group);
    free(order);
    return whole ? 0 :
                   err_set(e, E_CONFIG,
                           "'%.200s': its groups have not %" PRIu64
                           " inputs each, which %s needs",
                           module, q->group, layout_name(r->layout));
}

/* E_CONFIG: a layout with one group size, and linears that differ. */
static int compare_grids(struct repack *r, const char *module,
                         const struct ck_quantized *q, bool symmetric,
                         struct err *e)
{
    if (!r->group) {
        r->group = q->group;
        r->cols = q->cols;
        r->bits = q->bits;
        r->symmetric = symmetric;
    }
    r->mixed |=
        r->group != q->group || r->bits != q->bits || r->symmetric != symmetric;
    if (layout_groups_agree(r->layout, q->group, q->cols, r->group, r->cols))
        return 0;
    return err_set(e, E_CONFIG,
                   "'%.200s': has groups of %" PRIu64 ", others of %" PRIu64
                   ": a checkpoint in layout %s has one group size; "
                   "compressed-tensors, gptq and gptq_v2 take several",
                   module, q->group, r->group, layout_name(r->layout));
}

static int check_grid(struct repack *r, const char *module,
                      const struct ck_quantized *q, struct err *e)
{
    struct layout_shape s = { module, q->rows, q->cols };
    uint64_t i = 0;

    if (layout_check_bits(r->layout, q->bits, module, e))
        return e->code;
    while (i < q->rows * q->groups && q->zeros[i] == quant_middle(q->bits))
        i++;
    if (layout_check(r->layout, i == q->rows * q->groups, q->group, &s, &s, 1,
                     e) < 0)
        return strstr(e->msg, module) ? e->code :
                                        err_prefix(e, "'%.200s'", module);
    if (compare_grids(r, module, q, i == q->rows * q->groups, e) ||
        check_order(r, module, q, e) || check_scales(r, module, q, e))
        return e->code;
    return r->layout == LAYOUT_INT4PACK ? check_offsets(r, module, q, e) : 0;
}

static int check_modules(struct repack *r, struct checkpoint *c, struct err *e)
{
    int rc = 0;

    for (size_t i = 0; i < checkpoint_count(c) && rc >= 0; i++) {
        struct ck_quantized q;
        char module[1024];
        bool first;

        if (!checkpoint_part(c, checkpoint_tensor(c, i), module, sizeof(module),
                             &first) ||
            !first)
            continue;
        rc = checkpoint_grid(c, module, &q, e);
        if (rc > 0)
            rc = check_grid(r, module, &q, e);
        ck_quantized_release(&q);
    }
    return rc < 0 ? rc : 0;
}

/* E_CONFIG: quantized, but no linear of a layer: a head, a predictor of further
 * tokens. */
static int check_others(struct checkpoint *c, const char *model, struct err *e)
{
    static const char *const all[] = { "*" };
    const struct weights_choice choice = { .layer = -1,
                                           .others = true,
                                           .quantized = { all, 1, NULL, 0 } };
    struct model_config config;
    struct weights_plan plan;
    int rc = model_config_read(&config, model, e);

    if (rc)
        return rc;
    module_choice_apply(&choice.quantized, &config);
    rc = weights_plan(&plan, c, &config, &choice, e);
    for (size_t i = 0; !rc && i < plan.count; i++) {
        const char *name = plan.item[i].t->name;

        if (plan.item[i].kind == WEIGHTS_PACKED)
            rc = err_set(e, E_CONFIG,
                         "'%.200s': is quantized, which OUT holds of the "
                         "layers' linears alone%s",
                         name,
                         strncmp(name, "lm_head.", 8) == 0 ?
                             "; of a head too in --layout gguf" :
                             "");
    }
    weights_release(&plan);
    model_config_release(&config);
    return rc;
}

/* What engines do with IN beside its weights, and do not with OUT. */
static void warn_of_rounding(const struct repack *r, const struct checkpoint *c,
                             const char *model)
{
    if (checkpoint_rounds_activations(c))
        warning("'%s': its config.json has engines round activations, too "
                "(input_activations); of OUT they round the weights alone",
                model);
    if (checkpoint_rounds_cache(c))
        warning("'%s': its config.json has engines round keys and values "
                "(kv_cache_scheme); OUT does not say so%s",
                model,
                r->gguf ? "" : ", but has their scales where there are any");
}

static int check_source(struct repack *r, const char *model, struct err *e)
{
    struct checkpoint *c;
    int rc = 0;

    if (checkpoint_open(&c, model, e) < 0)
        return e->code;
    if (checkpoint_storage(c) == STORAGE_PLAIN)
        rc = err_set(e, E_CONFIG,
                     "'%s': is not in 4 bits; 'forge quantize' makes it so",
                     model);
    else if (!r->gguf)
        rc = check_others(c, model, e) ? e->code : check_modules(r, c, e);
    if (!rc)
        warn_of_rounding(r, c, model);
    checkpoint_close(c);
    return rc < 0 || r->gguf ? rc : sidecars_check(model, e);
}

/* Bytes that OUT takes at least: 5 % are what a layout may leave out, zeros in the middle
 * and g_idx.  Codes and scales have about the same size in all. */
static double least_bytes(const struct repack *r, const struct checkpoint *c,
                          bool tied)
{
    double packed = 0, rest = 0;

    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, i);
        double bytes = (double)t->bytes;
        char module[1024];
        bool first;

        if (checkpoint_part(c, t, module, sizeof(module), &first))
            packed += 0.95 * bytes;
        else if (r->gguf && r->rest == GGUF_REST_Q8_0 && t->ndim > 1)
            rest += bytes * 8.5 / dtype_bits(t->dtype);
        else if (!tied || strcmp(t->name, "lm_head.weight") != 0)
            rest += bytes;
    }
    return r->gguf ? 0.95 * (packed + rest) :
                     disk_shards(packed + rest, packed, (double)r->shard_size);
}

/* E_IO: OUT's disk has no room for it. */
static int check_room(const struct repack *r, const char *model,
                      const char *given, const char *out, struct err *e)
{
    struct model_config config;
    struct checkpoint *c;
    int rc = model_config_read(&config, model, e);

    if (rc)
        return rc;
    rc = checkpoint_open(&c, model, e);
    if (!rc) {
        const struct disk_claim claim = { given, out,
                                          least_bytes(r, c, config.tied) };

        rc = disk_check(&claim, e);
        checkpoint_close(c);
    }
    model_config_release(&config);
    return rc;
}

static int run_gguf(const struct repack *r, const char *model, const char *out,
                    struct err *e)
{
    char threads[WORD], progress[WORD], rest[WORD];
    struct command *c;
    struct pipes pipes;

    number_word(threads, r->threads);
    opt_word(PROGRESS_WORDS, r->progress, progress);
    opt_word(GGUF_REST_WORDS, r->rest, rest);
    pipes_init(&pipes);
    c = pipes_add(&pipes, "forge-gguf");
    command_add(c, "--threads", threads, "--progress", progress, "--rest", rest,
                NULL);
    if (r->quiet)
        command_add(c, "-q", NULL);
    command_add(c, "--", model, out, NULL);
    return pipes_run(&pipes, e);
}

static int run(const struct repack *r, const char *model, const char *out,
               struct err *e)
{
    char threads[WORD], size[WORD], progress[WORD];
    struct command *c;
    struct pipes pipes;

    number_word(threads, r->threads);
    opt_word(PROGRESS_WORDS, r->progress, progress);
    pipes_init(&pipes);
    command_add(pipes_add(&pipes, "forge-weights"), "-q", "--threads", threads,
                "--linears", "--modules", "*", "--", model, NULL);
    c = pipes_add(&pipes, "forge-pack");
    command_add(c, "-q", "--threads", threads, "--layout",
                layout_name(r->layout), NULL);
    if (r->layout == LAYOUT_INT4PACK)
        command_add(c, "--capability", int4pack_name(r->capability), NULL);
    if (r->act_order)
        command_add(c, "--act-order", NULL);
    if (r->mixed)
        command_add(c, "--mixed", NULL);
    c = pipes_add(&pipes, "forge-shard");
    command_add(c, "--threads", threads, "--progress", progress, "--shard-size",
                number_word(size, (int64_t)r->shard_size), "--from", model,
                "--others", "--modules", "*", NULL);
    if (r->quiet)
        command_add(c, "-q", NULL);
    command_add(c, "--", out, NULL);
    return pipes_run(&pipes, e);
}

/* E_DATA: forge_checksums.json, where there is one, lists other tensors. */
static int as_written(const char *in, struct err *e)
{
    struct err found;
    uint64_t tensors;
    int rc = digests_hold(in, &tensors, &found);

    if (rc == E_DATA)
        return err_set(e, rc, "%s: if that is wanted, remove %s", found.msg,
                       CHECKSUMS_FILE);
    if (rc)
        *e = found;
    return rc;
}

int command_repack(int argc, char **argv, struct err *e)
{
    struct repack r = { 0 };
    int layout = -1, capability = -1, rest = -1; /* not given */
    const struct opt table[] = {
        { OPT_CHOICE, 0, "layout", LAYOUT_ALL_WORDS "|gguf",
          "the layout of OUT", &layout, 0, 0, false },
        { OPT_CHOICE, 0, "capability", INT4PACK_WORDS,
          "layout int4pack: of the CPU that will run it [this one]",
          &capability, 0, 0, false },
        { OPT_CHOICE, 0, "rest", GGUF_REST_WORDS,
          "layout gguf: matrices that are not in 4 bits [stored]", &rest, 0, 0,
          false },
        { OPT_SIZE, 0, "shard-size", "SIZE",
          "most bytes in a file of OUT [5GB]", &r.shard_size, 0, 0, false },
        COMMAND_COMMON(&r.threads, &r.progress, &r.quiet),
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i = opt_parse(argc, argv, "repack IN OUT --layout X [option]...",
                      "Store a 4-bit checkpoint in another layout.", table);
    char model[PATH_MAX], out[PATH_MAX], place[PATH_MAX];
    const char *in = argv[i];

    if (argc - i != 2)
        return err_set(e, E_USAGE, "want IN and OUT (try --help)");
    if (layout < 0)
        return err_set(e, E_USAGE, "want --layout X (try --help)");
    r.gguf = layout == LAYOUT_COUNT;
    r.layout = r.gguf ? LAYOUT_CT : (enum layout)layout;
    if (rest >= 0 && !r.gguf)
        return err_set(e, E_USAGE, "--rest is for --layout gguf");
    if (capability >= 0 && r.layout != LAYOUT_INT4PACK)
        return err_set(e, E_USAGE, "--capability is for --layout int4pack");
    if (r.shard_size && r.gguf)
        return err_set(e, E_USAGE, "--shard-size: --layout gguf is one file");
    if (!r.shard_size)
        r.shard_size = SHARD_SIZE;
    r.rest = rest < 0 ? GGUF_REST_STORED : rest;
    r.capability =
        capability < 0 ? int4pack_here() : (enum int4pack_capability)capability;
    if (r.layout == LAYOUT_INT4PACK && r.capability == INT4PACK_UNKNOWN)
        return err_set(e, E_USAGE,
                       "torch's tiles on this CPU are not known: want "
                       "--capability, of the CPU that will run it");
    verbosity = r.quiet ? -1 : 0;
    if (find_model(&in, place, e) < 0 || path_absolute(in, model, e) < 0 ||
        path_absolute(argv[i + 1], out, e) < 0 ||
        check_out(argv[i + 1], out, model, e) < 0 ||
        check_source(&r, in, e) < 0 ||
        check_room(&r, in, argv[i + 1], out, e) < 0 || as_written(in, e) < 0)
        return e->code;
    if (r.act_order && r.layout == LAYOUT_CT)
        warning("'%s': vLLM and compressed-tensors of September 2026 and later "
                "refuse act-order; GPTQModel loads it in layout gptq_v2",
                in);
    if (r.moved)
        warning("int4pack holds zero points times scales, rounded to the "
                "scale's type, as torch's conversion does: weights of %" PRIu64
                " linears change by half of a last place at most",
                r.moved);
    return (r.gguf ? run_gguf : run)(&r, in, argv[i + 1], e);
}
