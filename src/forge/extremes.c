/* extremes.c - see extremes.h. */
#include "forge/extremes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arch/config.h"
#include "checkpoint/checkpoint.h"
#include "common/math/threads.h"
#include "gptq/grid/grid.h"

enum { PIECE = 4096 };

struct search {
    const struct job *j;
    const struct model_config *config;
    const size_t
        *linear; /* indices of the linears' weights in the checkpoint */
    float *most; /* largest |w| of each */
    struct threads_error error;
};

/* The largest |w|.  Floats without their sign bits compare as integers;
 * infinity and NaN are the largest. */
static float largest(const void *w, enum dtype t, uint64_t n)
{
    size_t item = dtype_bits(t) / 8;
    uint32_t most = 0;
    float x[PIECE], f;

    for (uint64_t i = 0; i < n; i += PIECE) {
        size_t k = n - i < PIECE ? (size_t)(n - i) : PIECE;
        uint32_t bits[PIECE];

        if (!to_f32(x, (const char *)w + i * item, t, k))
            return 0; /* no float type: forge-weights will refuse it */
        memcpy(bits, x, k * sizeof(*x));
        for (size_t b = 0; b < k; b++) {
            uint32_t v = bits[b] & 0x7fffffff;

            most = v > most ? v : most;
        }
    }
    memcpy(&f, &most, sizeof(f));
    return f;
}

static int look_at(struct search *s, size_t begin, size_t end, struct err *e)
{
    struct checkpoint *c;
    void *buf = NULL;
    size_t cap = 0;
    int rc = checkpoint_open(&c, s->j->model, e);

    if (rc)
        return rc;
    for (size_t i = begin; !rc && i < end; i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, s->linear[i]);

        if (t->bytes > cap) {
            free(buf);
            buf = mem_pages(t->bytes, t->name, e);
            cap = buf ? t->bytes : 0;
        }
        rc = buf ? checkpoint_read(c, t, buf, e) : e->code;
        if (!rc)
            s->most[i] =
                largest(buf, t->dtype, t->bytes * 8 / dtype_bits(t->dtype));
    }
    free(buf);
    checkpoint_close(c);
    return rc;
}

static void look(void *ctx, size_t begin, size_t end)
{
    struct search *s = ctx;
    struct err e;

    if (look_at(s, begin, end, &e) < 0)
        threads_error_add(&s->error, begin, &e);
}

static bool is_linear(const struct model_config *config,
                      const struct module_choice *choice,
                      const struct ck_tensor *t)
{
    static const char end[] = ".weight";
    size_t n = strlen(t->name), k = strlen(end);
    char module[MODULE_PATH_MAX];
    struct linear l;

    if (n <= k || n - k >= sizeof(module) || strcmp(t->name + n - k, end) != 0)
        return false;
    memcpy(module, t->name, n - k);
    module[n - k] = 0;
    return model_find_linear(config, module, &l) &&
           module_chosen(choice, module);
}

/* The largest |w| that a grid with an F16 scale can represent.  Q4_1 has -z s as
 * an F16, too, which is at most the least weight and half a step, 1/15 of it. */
static double limit(const struct job *j)
{
    const struct grid_rules rules = job_grids(j);

    if (j->layout == JOB_GGUF && grid_rules_any(&rules, false))
        return 65504.0 * 15 / 16;
    return grid_most(grid_rules_any(&rules, true), DT_F16);
}

static int judge(struct job *j, const char *name, float most, struct err *e)
{
    if (!isfinite(most))
        return err_set(e, E_DATA, "'%s': a weight is not finite", name);
    if ((double)most <= limit(j) || j->bf16_scales)
        return 0;
    if (j->layout != LAYOUT_CT)
        return err_set(e, E_CONFIG,
                       "'%s': has a weight of %g, and the scales of this "
                       "layout, F16, reach %g; --layout compressed-tensors "
                       "stores BF16 ones",
                       name, (double)most, limit(j));
    j->bf16_scales = true;
    remark("'%s': has a weight of %g, beyond F16 scales: scales are BF16", name,
           (double)most);
    return 0;
}

/* Search n tensors; each thread takes consecutive ones and opens the checkpoint
 * itself. */
static int search(struct search *s, size_t n, struct err *e)
{
    size_t threads = (size_t)threads_count();

    threads_error_init(&s->error);
    threads_for(n, (n + threads - 1) / threads, look, s);
    return threads_error_take(&s->error, e);
}

static int search_all(struct job *j, const struct checkpoint *c,
                      const struct model_config *config, struct err *e)
{
    size_t count = checkpoint_count(c), n = 0, worst = 0;
    size_t *linear = mem_alloc(count * sizeof(*linear), "weights", e);
    float *most = mem_zero(count, sizeof(*most), "weights", e);
    const struct module_choice choice = job_choice(j);
    struct search s = {
        .j = j, .config = config, .linear = linear, .most = most
    };
    int rc = linear && most ? 0 : e->code;

    for (size_t i = 0; !rc && i < count; i++)
        if (is_linear(config, &choice, checkpoint_tensor(c, i)))
            linear[n++] = i;
    if (!rc && n)
        rc = search(&s, n, e);
    for (size_t i = 1; i < n && isfinite(most[worst]); i++)
        if (!(most[i] <= most[worst])) /* also when most[i] is NaN */
            worst = i;
    if (!rc && n) {
        rc =
            judge(j, checkpoint_tensor(c, linear[worst])->name, most[worst], e);
        j->most = (double)most[worst];
    }
    free(linear);
    free(most);
    return rc;
}

static bool same_globs(const struct globs *a, const struct globs *b)
{
    bool same = a->n == b->n;

    for (int i = 0; same && i < a->n; i++)
        same = !strcmp(a->item[i], b->item[i]);
    return same;
}

int extremes_check(struct job *j, const struct job *known, struct err *e)
{
    struct model_config config;
    struct checkpoint *c;
    int rc;

    j->most = known && same_globs(&j->only, &known->only) &&
                      same_globs(&j->skip, &known->skip) ?
                  known->most :
                  0;
    if (j->most > 0 && (j->most <= limit(j) || j->bf16_scales))
        return 0;
    rc = model_config_read(&config, j->model, e);
    if (rc)
        return rc;
    rc = checkpoint_open(&c, j->model, e);
    if (!rc) {
        rc = search_all(j, c, &config, e);
        checkpoint_close(c);
    }
    model_config_release(&config);
    return rc;
}
