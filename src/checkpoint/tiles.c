/* tiles.c - see tiles.h. */
#include "checkpoint/tiles.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"
#include "layout/int4pack.h"

struct parts {
    const char *module;
    const struct ck_tensor *codes, *scales, *zeros, *perm;
    bool cpu;
};

bool tiles_are(const struct checkpoint *c)
{
    return c->quant.storage == STORAGE_INT4PACK ||
           c->quant.storage == STORAGE_INT4PACK_XPU;
}

static int wrong(const struct ck_tensor *t, const char *want, struct err *e)
{
    return err_set(e, E_DATA, "'%.200s': is no %s", t->name, want);
}

static int find_parts(const struct checkpoint *c, const char *module,
                      struct parts *s, struct err *e)
{
    *s = (struct parts){ .module = module,
                         .cpu = c->quant.storage == STORAGE_INT4PACK };
    s->codes = packed_part(c, module, "weight_int4pack");
    if (!s->codes)
        return 0;
    s->scales = packed_part(c, module, s->cpu ? "scales_and_zeros" : "scales");
    s->zeros = s->cpu ? NULL : packed_part(c, module, "zeros");
    s->perm = packed_part(c, module, "input_perm");
    if (!s->scales || (!s->cpu && !s->zeros))
        return err_set(e, E_DATA,
                       "'%.200s': has weight_int4pack, but not all of its "
                       "scales and zeros",
                       module);
    return 1;
}

static int find_sizes(const struct checkpoint *c, const struct parts *s,
                      struct packed *p, struct err *e)
{
    const struct ck_tensor *q = s->codes, *t = s->scales, *z = s->zeros;

    if (q->ndim != 2 || q->dtype != (s->cpu ? DT_U8 : DT_I32) || !q->dims[0] ||
        !q->dims[1] || q->dims[0] >= 1u << 31 || q->dims[1] >= 1u << 28)
        return wrong(q, s->cpu ? "matrix of bytes" : "matrix of words", e);
    p->bits = 4;
    p->rows = q->dims[0];
    p->cols = q->dims[1] * (s->cpu ? 2 : 8);
    p->group = c->quant.group > 0 ? (uint64_t)c->quant.group : p->cols;
    p->scale_dtype = t->dtype;
    p->groups = p->cols / p->group;
    if (p->rows % (s->cpu ? 16 : 1) || p->cols % 8 || p->cols % p->group)
        return err_set(e, E_DATA,
                       "'%.200s': %" PRIu64 "x%" PRIu64
                       " weights do not fit the tiles in groups of %" PRIu64,
                       q->name, p->rows, p->cols, p->group);
    if ((t->dtype != DT_F16 && t->dtype != DT_BF16) ||
        t->ndim != (s->cpu ? 3 : 2) || t->dims[0] != p->groups ||
        t->dims[1] != p->rows || (s->cpu && t->dims[2] != 2))
        return wrong(t, "F16 or BF16 for each group and output", e);
    if (z && (z->dtype != DT_I8 || z->ndim != 2 || z->dims[0] != p->groups ||
              z->dims[1] != p->rows))
        return wrong(z, "byte for each group and output", e);
    if (s->perm && (s->perm->dtype != DT_I32 || s->perm->ndim != 1 ||
                    s->perm->dims[0] != p->cols))
        return wrong(s->perm, "number of an input for each input", e);
    return 0;
}

/* p->g_idx of the order in perm, which is one of all inputs. */
static int read_index(struct checkpoint *c, const struct parts *s,
                      struct packed *p, int32_t **perm, struct err *e)
{
    if (!s->perm)
        return 0;
    if (!(*perm = packed_bytes(c, s->perm, e)) ||
        !(p->g_idx = mem_alloc(p->cols * sizeof(*p->g_idx), s->module, e)))
        return e->code;
    for (uint64_t k = 0; k < p->cols; k++)
        p->g_idx[k] = -1;
    for (uint64_t k = 0; k < p->cols; k++) {
        int32_t to = (*perm)[k];

        if (to < 0 || (uint64_t)to >= p->cols || p->g_idx[to] >= 0)
            return wrong(s->perm, "order of the inputs", e);
        p->g_idx[to] = (int32_t)(k / p->group);
    }
    return 0;
}

/* Each code back to its input. */
static int put_back(struct packed *p, const char *module, const int32_t *perm,
                    struct err *e)
{
    uint64_t words = p->cols / 8;
    uint32_t *row = mem_alloc(words * sizeof(*row), module, e);

    for (uint64_t o = 0; row && o < p->rows; o++) {
        uint32_t *code = p->codes + o * words;

        memset(row, 0, words * sizeof(*row));
        for (uint64_t k = 0; k < p->cols; k++)
            row[perm[k] / 8] |= (code[k / 8] >> 4 * (k % 8) & 15)
                                << 4 * (perm[k] % 8);
        memcpy(code, row, words * sizeof(*row));
    }
    free(row);
    return row ? 0 : e->code;
}

static int read_codes(struct checkpoint *c, const struct parts *s,
                      struct packed *p, struct err *e)
{
    void *q = packed_bytes(c, s->codes, e);

    if (!s->cpu || !q) {
        p->codes = q;
        return q ? 0 : e->code;
    }
    p->codes = mem_pages(p->rows * p->cols / 2, s->module, e);
    if (p->codes)
        int4pack_unpack(p->codes, q, p->rows, p->cols / 8, c->quant.capability);
    free(q);
    return p->codes ? 0 : e->code;
}

/* Pairs (s, (8 - zero) s) to scales and zeros. */
static int split(const struct parts *s, const uint16_t *pair, struct packed *p,
                 struct err *e)
{
    uint16_t *scale = (uint16_t *)(void *)p->scales;

    for (uint64_t g = 0; g < p->groups; g++)
        for (uint64_t o = 0; o < p->rows; o++) {
            const uint16_t *at = pair + 2 * (g * p->rows + o);
            uint64_t to = o * p->groups + g;
            int zero = int4pack_zero(at[1], at[0], p->scale_dtype);

            if (zero < 0)
                return err_set(e, E_DATA,
                               "'%.200s': what stands for the zero of output "
                               "%" PRIu64 ", group %" PRIu64
                               " is no multiple of its scale",
                               s->scales->name, o, g);
            scale[to] = at[0];
            p->zeros[to] = (uint8_t)zero;
        }
    return 0;
}

static int transpose(const struct parts *s, const uint16_t *scales,
                     const uint8_t *zeros, struct packed *p, struct err *e)
{
    uint16_t *scale = (uint16_t *)(void *)p->scales;

    for (uint64_t g = 0; g < p->groups; g++)
        for (uint64_t o = 0; o < p->rows; o++) {
            if (zeros[g * p->rows + o] > 15)
                return wrong(s->zeros, "zero of 4 bits", e);
            scale[o * p->groups + g] = scales[g * p->rows + o];
            p->zeros[o * p->groups + g] = zeros[g * p->rows + o];
        }
    return 0;
}

static int read_grid(struct checkpoint *c, const struct parts *s,
                     struct packed *p, struct err *e)
{
    void *scales = packed_bytes(c, s->scales, e);
    void *zeros = scales && s->zeros ? packed_bytes(c, s->zeros, e) : NULL;
    int r = scales && (zeros || !s->zeros) ? 0 : e->code;

    if (!r) {
        p->scales = mem_alloc(p->rows * p->groups * 2, s->module, e);
        p->zeros = mem_alloc(p->rows * p->groups, s->module, e);
        r = !p->scales || !p->zeros ? e->code :
            s->cpu                  ? split(s, scales, p, e) :
                                      transpose(s, scales, zeros, p, e);
    }
    free(scales);
    free(zeros);
    return r;
}

int tiles_read(struct checkpoint *c, const char *module, bool codes,
               struct packed *p, struct err *e)
{
    int32_t *perm = NULL;
    struct parts s;
    int r = find_parts(c, module, &s, e);

    memset(p, 0, sizeof(*p));
    if (r <= 0)
        return r;
    r = find_sizes(c, &s, p, e);
    if (!r)
        r = read_index(c, &s, p, &perm, e);
    if (!r)
        r = read_grid(c, &s, p, e);
    if (!r && codes)
        r = read_codes(c, &s, p, e);
    if (!r && codes && perm)
        r = put_back(p, module, perm, e);
    free(perm);
    if (r)
        packed_release(p);
    return r ? r : 1;
}
