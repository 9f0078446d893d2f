/* keys.c - see request.h.  A stage's key is a hash of the options that the
 * stage uses, of the bytes that it reads, and of the key of the stage
 * before. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/expertmap.h"
#include "common/io/hash.h"
#include "common/io/modeldir.h"
#include "common/math/cpu.h"
#include "forge/extremes.h"
#include "forge/request.h"
#include "forge/weights.h"

enum { CHUNK = 1 << 20, PART_MAX = 512 };

/* The hash of a key's parts, each of which is delimited. */
struct hash {
    XXH3_state_t *state;
    int rc; /* the first error, also in *e */
    struct err *e;
};

static void begin(struct hash *h, struct err *e)
{
    *h = (struct hash){ .state = XXH3_createState(), .e = e };
    if (h->state)
        XXH3_128bits_reset(h->state);
    else
        h->rc = err_set(e, E_TEMP, "keys: out of memory");
}

PRINTF(2, 3)
static void add(struct hash *h, const char *fmt, ...)
{
    char text[PART_MAX];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (!h->rc)
        XXH3_128bits_update(h->state, text, (size_t)n + 1);
}

static void add_words(struct hash *h, const struct job_words *w)
{
    for (int i = 0; i < w->n; i++)
        add(h, "%s", w->text[i]);
}

/* Add all bytes of f and their number; closes f. */
static void add_file(struct hash *h, struct file *f)
{
    uint64_t size = file_size(f);
    char *buf = mem_alloc(CHUNK, "keys", h->e);

    if (!buf)
        h->rc = h->e->code;
    for (uint64_t at = 0; !h->rc && at < size; at += CHUNK) {
        size_t n = size - at < CHUNK ? (size_t)(size - at) : CHUNK;

        h->rc = file_read(f, buf, n, at, h->e);
        if (!h->rc)
            XXH3_128bits_update(h->state, buf, n);
    }
    add(h, "%" PRIu64, size);
    free(buf);
    file_close(f);
}

static void add_path(struct hash *h, const char *path)
{
    struct file *f;

    if (!h->rc)
        h->rc = file_open(&f, AT_FDCWD, path, h->e);
    if (!h->rc)
        add_file(h, f);
}

/* Add a file of the model, if it exists. */
static void add_sidecar(struct hash *h, const char *model, const char *name)
{
    struct modeldir d;
    struct file *f;

    if (h->rc || (h->rc = modeldir_open(&d, model, h->e)))
        return;
    if (modeldir_has(&d, name)) {
        h->rc = modeldir_file(&d, name, &f, h->e);
        if (!h->rc)
            add_file(h, f);
    }
    modeldir_close(&d);
}

static int end(struct hash *h, char key[KEY_LEN + 1])
{
    XXH128_canonical_t c;

    if (!h->rc) {
        XXH128_canonicalFromHash(&c, XXH3_128bits_digest(h->state));
        for (int i = 0; i < KEY_LEN / 2; i++)
            snprintf(key + 2 * i, 3, "%02x", c.digest[i]);
    }
    XXH3_freeState(h->state);
    return h->rc;
}

static void add_model(struct hash *h, const struct job *j)
{
    add(h, "model %016" PRIx64, j->fingerprint);
    for (size_t i = 0; i < j->in.files; i++)
        add(h, "%s %" PRIu64 " %016" PRIx64, j->in.file[i].name,
            j->in.file[i].size, j->in.file[i].hash);
    add_sidecar(h, j->model, EXPERT_MAP_FILE);
}

static void add_choice(struct hash *h, const struct job *j)
{
    for (int i = 0; i < j->only.n; i++)
        add(h, "only %s", j->only.item[i]);
    for (int i = 0; i < j->skip.n; i++)
        add(h, "skip %s", j->skip.item[i]);
}

/* What a run computes on, in words. */
static const char *device_words(const struct job *j)
{
    return *j->gpu ? j->gpu : "the CPU";
}

/* Sums depend on the GPU, too. */
static int settle_gpu(struct request *r, const struct job *known, struct err *e)
{
    struct job *j = &r->j;

    if (j->method != METHOD_GPTQ && !r->prune.keep)
        return 0;
    if (gpu_learn(&r->gpu, e) < 0)
        return e->code;
    snprintf(j->gpu, sizeof(j->gpu), "%s", r->gpu.facts.stamp);
    if (known && known->method == j->method && strcmp(known->gpu, j->gpu))
        warning("'%s': was made on %s, this run computes on %s: it makes its "
                "own files%s",
                r->work_path, device_words(known), device_words(j),
                *known->gpu ? "" : "; --device cpu goes on with those");
    return 0;
}

/* Hash the weights, using hashes in existing settings of unchanged files, and
 * check that scales reach the weights (quantized; not for a model that is to be
 * pruned first).  Results depend on the CPU level: a run continued on another
 * machine is told which level to choose. */
static int hash_weights(struct request *r, bool quantized, struct err *e)
{
    struct job known;
    struct err ignored;
    bool any = job_read(&known, r->work_path, &ignored) == 0, same = false;
    int rc = weights_hash(&r->j, any ? &known : NULL, &same, e);

    if (!rc && quantized)
        rc = extremes_check(&r->j, any && same ? &known : NULL, e);
    snprintf(r->j.cpu, sizeof(r->j.cpu), "%s", cpu_level_name(cpu_level()));
    if (any && strcmp(known.cpu, r->j.cpu))
        warning(
            "'%s': was made with FORGE_CPU=%s, this run uses %s: it makes its "
            "own files; FORGE_CPU=%s goes on with those",
            r->work_path, known.cpu, r->j.cpu, known.cpu);
    if (!rc)
        rc = settle_gpu(r, any && quantized ? &known : NULL, e);
    if (any)
        job_release(&known);
    return rc;
}

int keys_make(struct request *r, struct err *e)
{
    struct job *j = &r->j;
    struct job_words words;
    struct hash h;

    if (!r->hashed && hash_weights(r, true, e) < 0)
        return e->code;
    begin(&h, e);
    add(&h, "tokens %s", FORGE_VERSION);
    if (j->method == METHOD_GPTQ) {
        add(&h, "%" PRId64 " %" PRId64, j->sequences, j->seqlen);
        add_path(&h, j->text);
        /* ids need no tokenizer; without one forge-tokens refuses text */
        add_sidecar(&h, j->model, "tokenizer.json");
    }
    if (end(&h, j->tkey) < 0)
        return e->code;
    begin(&h, e);
    add(&h, "calib %s %s", j->tkey, j->cpu);
    add_model(&h, j);
    if (j->method == METHOD_GPTQ)
        add(&h, "%d %" PRId64, j->propagate, j->blend);
    else
        add(&h, "rtn");
    if (r->plan.kv_b) /* its inputs are a point more */
        add(&h, "kv_b");
    if (*j->gpu) /* sums depend on it, and on the next */
        add(&h, "gpu %s", j->gpu);
    if (j->parts > 1) /* 2: what files of stops have */
        add(&h, "parts %" PRId64 " 2", j->parts);
    if (j->fisher) /* 2: margins of routers are in them */
        add(&h, "gradients 3 %" PRId64, effort_fisher_tokens(j->effort));
    if (job_weighs(j)) /* Hessians are of weighted tokens */
        add(&h, "weights");
    add_sidecar(&h, j->model, "config.json");
    if (end(&h, j->ckey) < 0)
        return e->code;
    begin(&h, e);
    add(&h, "solve %s", j->ckey);
    job_grid(j, &words);
    add_words(&h, &words);
    job_solve(j, &words);
    add_words(&h, &words);
    add_choice(&h, j);
    for (int i = 0; i < j->grids.n; i++)
        add(&h, "grid %s", j->grids.item[i]);
    if (end(&h, j->skey) < 0)
        return e->code;
    strcpy(j->ukey, j->skey);
    if (!j->tune)
        return 0;
    begin(&h, e);
    add(&h, "tuned 6 %s %" PRId64 " %" PRId64, j->skey, j->tune, j->tune_batch);
    add_sidecar(&h, j->model, "generation_config.json");
    return end(&h, j->ukey);
}

int keys_bits(struct request *r, char path[PATH_MAX], struct err *e)
{
    const struct job *j = &r->j;
    char key[KEY_LEN + 1];
    struct hash h;

    if (hash_weights(r, true, e) < 0)
        return e->code;
    r->hashed = true;
    begin(&h, e);
    add(&h, "bits 2 %s %s %s", FORGE_VERSION, j->cpu, j->gpu);
    add_model(&h, j);
    add(&h, "%.9g %" PRId64 " %d %d %" PRId64 " %" PRId64 " %" PRId64, r->bits,
        j->group, j->symmetric, j->layout == JOB_GGUF, j->sequences, j->seqlen,
        j->blend);
    add_choice(&h, j);
    add_path(&h, j->text);
    add_sidecar(&h, j->model, "config.json");
    add_sidecar(&h, j->model, "tokenizer.json");
    if (end(&h, key) < 0)
        return e->code;
    if ((size_t)snprintf(path, PATH_MAX, "%s/bits-%s", r->work_path, key) >=
        PATH_MAX - sizeof(".fisher"))
        return err_set(e, E_CREATE, "'%.200s...': path is too long",
                       r->work_path);
    return 0;
}

int keys_pruned(struct request *r, struct err *e)
{
    const struct prune_request *p = &r->prune;
    char key[KEY_LEN + 1];
    struct hash h;

    if (hash_weights(r, false, e) < 0)
        return e->code;
    r->prune.device = *r->j.gpu ? r->j.device : "cpu";
    r->prune.gpu = *r->j.gpu ? r->j.gpu : NULL;
    begin(&h, e);
    add(&h, "pruned %s %s", FORGE_VERSION, r->j.cpu);
    add_model(&h, &r->j);
    add(&h, "%" PRId64 " %d %d %" PRId64 " %" PRId64, p->keep, p->by, p->mode,
        p->sequences, p->seqlen);
    add(&h, p->hitmap ? "hitmap" : "text");
    add_path(&h, p->hitmap ? p->hitmap : r->j.text);
    if (!p->hitmap && *r->j.gpu)
        add(&h, "gpu %s", r->j.gpu);
    add_sidecar(&h, r->j.model, "config.json");
    add_sidecar(&h, r->j.model, "tokenizer.json");
    if (end(&h, key) < 0)
        return e->code;
    if ((size_t)snprintf(r->pruned, PATH_MAX, "%s/pruned-%s", r->work_path,
                         key) >= PATH_MAX)
        return err_set(e, E_CREATE, "'%.200s...': path is too long",
                       r->work_path);
    return 0;
}
