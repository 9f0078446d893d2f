/* packer.c - see packer.h.
 *
 * Every grid is first brought to one form (scales as stored, zeros one per
 * byte), from which each layout is packed.  Buffers are kept between modules: a
 * model has thousands of modules of equal size. */
#include "pack/packer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "common/math/threads.h"
#include "pack/pack_backend.h"
#include "pack/packing.h"

struct buffer {
    void *data;
    size_t cap;
};

struct packer {
    struct pack_run *run;
    struct buffer scales, zeros; /* the module's grid, [O, G] */
    struct buffer weight_out, scales_out, zeros_out;
    struct buffer index_out; /* g_idx, or the inputs' order */
    struct buffer codes;     /* in that order */
    int64_t shape[2];
    bool symmetric; /* the module is packed without zeros */
};

int packer_open(struct packer **p, struct pack_run *run, struct err *e)
{
    *p = mem_zero(1, sizeof(**p), "packer", e);
    if (!*p)
        return e->code;
    (*p)->run = run;
    return 0;
}

void packer_close(struct packer *p)
{
    if (!p)
        return;
    free(p->scales.data);
    free(p->zeros.data);
    free(p->weight_out.data);
    free(p->scales_out.data);
    free(p->zeros_out.data);
    free(p->index_out.data);
    free(p->codes.data);
    free(p);
}

/* Make room for count elements; the old content is lost. */
static int need(struct buffer *b, uint64_t count, size_t size, struct err *e)
{
    size_t n;

    if (size_mul(count, size, &n))
        return err_set(e, E_DATA, "a module of this size is beyond memory");
    return mem_reserve(&b->data, &b->cap, n, "packer", e);
}

/* ---- the grid of a module in one form ---- */

struct grid_job {
    const struct pack_module *m;
    uint16_t *scales;
    uint8_t *zeros;
};

static void grid_from_meta(void *ctx, size_t begin, size_t end)
{
    const struct grid_job *j = ctx;
    bool bf16 = j->m->scale_dtype == DT_BF16;

    for (size_t i = begin; i < end; i++) {
        struct qgrid g = quant_grid(j->m->meta[i], j->m->scale_dtype);

        j->scales[i] = bf16 ? bf16_from_f32(g.scale) : f16_from_f32(g.scale);
        j->zeros[i] = (uint8_t)g.zero;
    }
}

static void grid_from_scales(const struct grid_job *j, size_t n)
{
    if (j->m->scale_dtype != DT_F32) /* scales_to_f16() reads those */
        memcpy(j->scales, j->m->scales, n * sizeof(*j->scales));
    if (j->m->zeros)
        quant_unpack_row(j->zeros, j->m->zeros, n, j->m->bits);
    else
        memset(j->zeros, quant_middle(j->m->bits), n);
}

/* A qmeta4's exponent can stand for scales beyond F16's range.  E_DATA. */
static int check_finite(const struct grid_job *j, size_t n, struct err *e)
{
    uint16_t exponent = j->m->scale_dtype == DT_BF16 ? 0x7f80 : 0x7c00;

    for (size_t i = 0; i < n; i++)
        if ((j->scales[i] & exponent) == exponent)
            return err_set(e, E_DATA,
                           "%s: the scale of output %zu, group %zu is not "
                           "finite in %s",
                           j->m->name, i / (size_t)j->m->groups,
                           i % (size_t)j->m->groups,
                           dtype_name(j->m->scale_dtype));
    return 0;
}

static bool is_symmetric(const struct pack_module *m, const uint8_t *zeros,
                         size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (m->meta ? !quant_is_symmetric(m->meta[i]) :
                      zeros[i] != quant_middle(m->bits))
            return false;
    return true;
}

/* Convert BF16 scales to F16, which the kernels of AWQ and GPTQ read: more
 * digits, less range; F32 ones, of others' checkpoints, for any layout.
 * E_CONFIG: F16 does not hold a scale exactly. */
static int scales_to_f16(const struct grid_job *j, size_t n, struct err *e)
{
    bool wide = j->m->scale_dtype == DT_F32;

    for (size_t i = 0; i < n; i++) {
        float x = wide ? ((const float *)j->m->scales)[i] :
                         f32_from_bf16(j->scales[i]);

        if (!f16_holds(x, &j->scales[i]))
            return err_set(e, E_CONFIG,
                           "%s: the scale of output %zu, group %zu is %g, "
                           "which F16 cannot hold%s",
                           j->m->name, i / (size_t)j->m->groups,
                           i % (size_t)j->m->groups, (double)x,
                           wide ? "" :
                                  ", and the kernels of this layout read F16: "
                                  "use compressed-tensors");
    }
    return 0;
}

static int make_grid(struct packer *p, struct pack_module *m, bool *symmetric,
                     struct err *e)
{
    uint64_t n;
    struct grid_job j = { .m = m };

    if (m->scale_dtype != DT_F16 && m->scale_dtype != DT_BF16 &&
        (m->scale_dtype != DT_F32 || !m->scales))
        return err_set(e, E_CONFIG, "%s: scales are %s: want F16 or BF16",
                       m->name, dtype_name(m->scale_dtype));
    if (!m->group || m->groups != quant_groups(m->cols, m->group))
        return err_set(e, E_DATA,
                       "%s: %" PRIu64 " inputs in groups of %" PRIu64
                       " cannot have %" PRIu64 " scales",
                       m->name, m->cols, m->group, m->groups);
    if (size_mul(m->rows, m->groups, &n))
        return err_set(e, E_DATA, "%s: sizes overflow", m->name);
    if (need(&p->scales, n, sizeof(uint16_t), e) || need(&p->zeros, n, 1, e))
        return e->code;
    j.scales = p->scales.data;
    j.zeros = p->zeros.data;
    if (m->meta)
        threads_for(n, 4096, grid_from_meta, &j);
    else
        grid_from_scales(&j, n);
    if (m->scale_dtype == DT_F32) {
        if (scales_to_f16(&j, n, e))
            return e->code;
        m->scale_dtype = DT_F16;
    }
    if (check_finite(&j, n, e))
        return e->code;
    if (!layout_takes_bf16(p->run->layout) && m->scale_dtype == DT_BF16) {
        if (scales_to_f16(&j, n, e))
            return e->code;
        m->scale_dtype = DT_F16;
    }
    *symmetric = is_symmetric(m, p->zeros.data, n);
    return 0;
}

/* m->index stays only if it says more than input / group. */
static int check_index(struct pack_module *m, struct err *e)
{
    bool plain = true;

    for (uint64_t k = 0; m->index && k < m->cols; k++) {
        if (m->index[k] < 0 || (uint64_t)m->index[k] >= m->groups)
            return err_set(e, E_DATA,
                           "%s: input %" PRIu64 " is in group %d of %" PRIu64,
                           m->name, k, m->index[k], m->groups);
        plain = plain && (uint64_t)m->index[k] == k / m->group;
    }
    if (plain)
        m->index = NULL;
    return 0;
}

/* GPTQ says the order of every module; others of all, or of none. */
static int agree_order(struct pack_run *run, const struct pack_module *m,
                       struct err *e)
{
    bool gptq = run->layout == LAYOUT_GPTQ || run->layout == LAYOUT_GPTQ_V2;

    if ((m->index || run->act_order > 0) &&
        !layout_takes_act_order(run->layout))
        return err_set(e, E_CONFIG,
                       "%s: inputs of a group lie apart (act-order), and %s "
                       "has them side by side",
                       m->name, layout_name(run->layout));
    if (run->act_order < 0 || (gptq && m->index))
        run->act_order = m->index != NULL;
    if (m->index && !run->act_order)
        return err_set(e, E_CONFIG,
                       "%s: inputs of a group lie apart, in a checkpoint "
                       "without an order of them: pack all of it with "
                       "--act-order",
                       m->name);
    return 0;
}

/* Count the module with those of its grid. */
static int count_kind(struct pack_run *run, const struct pack_module *m,
                      bool symmetric, struct err *e)
{
    int i = 0;

    while (i < run->n_kinds &&
           (run->kind[i].group != m->group || run->kind[i].bits != m->bits ||
            run->kind[i].symmetric != symmetric))
        i++;
    if (i == PACK_KINDS)
        return err_set(e, E_CONFIG, "%s: more than %d kinds of grids", m->name,
                       PACK_KINDS);
    if (i == run->n_kinds)
        run->kind[run->n_kinds++] = (struct pack_kind){
            .group = m->group, .bits = m->bits, .symmetric = symmetric
        };
    run->kind[i].modules++;
    return 0;
}

/* Check the module against `run`, and set what run leaves open.  A symmetric
 * module fits into an asymmetric checkpoint, an asymmetric one not into a
 * symmetric. */
static int agree(struct pack_run *run, const struct pack_module *m,
                 bool symmetric, struct err *e)
{
    bool mixed = run->mixed && layout_takes_grids(run->layout);

    if (run->symmetric < 0)
        run->symmetric = symmetric;
    if (run->mixed)
        run->symmetric &= symmetric;
    if (run->symmetric && !symmetric)
        return err_set(
            e, E_CONFIG, "%s is asymmetric in a symmetric checkpoint%s",
            m->name, run->modules ? ": pack all of it with --asymmetric" : "");
    if (!run->group)
        run->group = m->group;
    if (!run->cols)
        run->cols = m->cols;
    if (run->group != m->group &&
        (!run->mixed || !layout_groups_agree(run->layout, m->group, m->cols,
                                             run->group, run->cols)))
        return err_set(e, E_CONFIG,
                       "%s has groups of %" PRIu64 ", want %" PRIu64
                       ": a checkpoint %shas one group size",
                       m->name, m->group, run->group,
                       run->mixed ? "in this layout " : "");
    if (!run->bits)
        run->bits = m->bits;
    if (run->bits != m->bits && !mixed)
        return err_set(e, E_CONFIG,
                       "%s has codes of %d bits, want %d: pack all of it with "
                       "--mixed",
                       m->name, m->bits, run->bits);
    if (run->scale_dtype == DT_NONE)
        run->scale_dtype = m->scale_dtype;
    if (run->scale_dtype != m->scale_dtype)
        return err_set(e, E_CONFIG, "%s has %s scales in a checkpoint of %s",
                       m->name, dtype_name(m->scale_dtype),
                       dtype_name(run->scale_dtype));
    return count_kind(run, m, symmetric, e);
}

/* ---- layouts ---- */

static struct packed_tensor part(const char *name, enum dtype t, uint64_t d0,
                                 uint64_t d1, uint64_t d2, const void *data)
{
    struct packed_tensor x = { .part = name,
                               .dtype = t,
                               .ndim = d2 ? 3 :
                                       d1 ? 2 :
                                            1,
                               .dims = { d0, d1, d2 },
                               .data = data };
    uint64_t bytes = 0;

    if (!dtype_size(t, x.ndim, x.dims, &bytes))
        bytes = 0; /* cannot be: buffers of this size have been allocated */
    x.len = bytes;
    return x;
}

/* Words of n codes or zeros of the module; n is a multiple of 8. */
static uint64_t words(const struct pack_module *m, uint64_t n)
{
    return n * (unsigned)m->bits / 32;
}

/* The group of each input. */
static int put_index(struct packer *p, const struct pack_module *m,
                     struct err *e)
{
    int32_t *to;

    if (need(&p->index_out, m->cols, sizeof(*to), e))
        return e->code;
    to = p->index_out.data;
    for (uint64_t k = 0; k < m->cols; k++)
        to[k] = m->index ? m->index[k] : (int32_t)(k / m->group);
    return 0;
}

static int pack_ct(struct packer *p, const struct pack_module *m,
                   struct packed_tensor *out, struct err *e)
{
    int n = 0;

    p->shape[0] = (int64_t)m->rows;
    p->shape[1] = (int64_t)m->cols;
    /* the bytes of codes are the words of compressed-tensors */
    out[n++] =
        part("weight_packed", DT_I32, m->rows, words(m, m->cols), 0, m->codes);
    out[n++] = part("weight_scale", m->scale_dtype, m->rows, m->groups, 0,
                    p->scales.data);
    if (!p->symmetric) {
        if (need(&p->zeros_out, words(m, m->rows) * m->groups, 4, e))
            return e->code;
        pack_zeros_ct(p->zeros_out.data, p->zeros.data, m->rows, m->groups,
                      m->bits);
        out[n++] = part("weight_zero_point", DT_I32, words(m, m->rows),
                        m->groups, 0, p->zeros_out.data);
    }
    out[n++] = part("weight_shape", DT_I64, 2, 0, 0, p->shape);
    if (p->run->act_order > 0) {
        if (put_index(p, m, e))
            return e->code;
        out[n++] =
            part("weight_g_idx", DT_I32, m->cols, 0, 0, p->index_out.data);
    }
    return n;
}

static int pack_awq_gptq(struct packer *p, const struct pack_module *m,
                         struct packed_tensor *out, struct err *e)
{
    enum layout l = p->run->layout;
    bool awq = l == LAYOUT_AWQ;
    const uint32_t *in = (const uint32_t *)(const void *)m->codes;
    uint64_t deep = words(m, m->cols), wide = words(m, m->rows);
    const void *qweight;
    int n = 0;

    if ((!m->words && need(&p->weight_out, m->rows * deep, 4, e)) ||
        need(&p->zeros_out, wide * m->groups, 4, e) ||
        need(&p->scales_out, m->rows * m->groups, 2, e) ||
        (!m->words && pack_words(l, p->weight_out.data, in, m->rows, deep, e)))
        return e->code;
    qweight = m->words ? m->words : p->weight_out.data;
    pack_zeros(p->zeros_out.data, p->zeros.data, m->rows, m->groups, m->bits,
               awq, l == LAYOUT_GPTQ);
    pack_transpose_u16(p->scales_out.data, p->scales.data, m->rows, m->groups);
    out[n++] = awq ? part("qweight", DT_I32, m->cols, wide, 0, qweight) :
                     part("qweight", DT_I32, deep, m->rows, 0, qweight);
    out[n++] = part("qzeros", DT_I32, m->groups, wide, 0, p->zeros_out.data);
    out[n++] = part("scales", m->scale_dtype, m->groups, m->rows, 0,
                    p->scales_out.data);
    if (awq)
        return n;
    if (put_index(p, m, e))
        return e->code;
    out[n++] = part("g_idx", DT_I32, m->cols, 0, 0, p->index_out.data);
    return n;
}

/* The inputs of group 0 in their order, of group 1, ...: what activations are
 * brought into before torch multiplies. */
static int put_order(struct packer *p, const struct pack_module *m,
                     struct err *e)
{
    if (need(&p->index_out, m->cols, sizeof(int32_t), e))
        return e->code;
    if (!int4pack_order(p->index_out.data, m->index, m->cols, m->group))
        return err_set(e, E_CONFIG,
                       "%s: its groups have not %" PRIu64
                       " inputs each, which %s needs",
                       m->name, m->group, layout_name(p->run->layout));
    return 0;
}

struct reorder {
    const uint32_t *in;
    uint32_t *out;
    const int32_t *order;
    uint64_t words;
};

static void reorder_rows(void *ctx, size_t begin, size_t end)
{
    const struct reorder *r = ctx;

    for (size_t o = begin; o < end; o++) {
        const uint32_t *in = r->in + o * r->words;
        uint32_t *out = r->out + o * r->words;

        for (uint64_t w = 0; w < r->words; w++) {
            uint32_t x = 0;

            for (int j = 0; j < 8; j++) {
                int32_t k = r->order[8 * w + (unsigned)j];

                x |= (in[k / 8] >> 4 * (k % 8) & 15) << 4 * j;
            }
            out[w] = x;
        }
    }
}

/* The codes as torch's operators get them, and in out[n] where there is one
 * the order of the inputs.  How many tensors there are then. */
static int put_ordered(struct packer *p, const struct pack_module *m, int n,
                       struct packed_tensor *out, const uint32_t **codes,
                       struct err *e)
{
    struct reorder r = { .in = (const uint32_t *)(const void *)m->codes,
                         .words = m->cols / 8 };

    *codes = r.in;
    if (p->run->act_order <= 0)
        return n;
    if (put_order(p, m, e) || need(&p->codes, m->rows * r.words, 4, e))
        return e->code;
    *codes = r.out = p->codes.data;
    r.order = p->index_out.data;
    threads_for(m->rows, 16, reorder_rows, &r);
    out[n] = part("input_perm", DT_I32, m->cols, 0, 0, r.order);
    return n + 1;
}

/* scales and offsets of torch's product, [groups, rows, 2]: scale, (8 - zero)
 * scale. */
static int pack_offsets(struct packer *p, const struct pack_module *m,
                        struct err *e)
{
    const uint16_t *scales = p->scales.data;
    const uint8_t *zeros = p->zeros.data;
    uint16_t *out;

    if (need(&p->scales_out, m->rows * m->groups, 4, e))
        return e->code;
    out = p->scales_out.data;
    for (uint64_t o = 0; o < m->rows; o++)
        for (uint64_t g = 0; g < m->groups; g++) {
            uint64_t from = o * m->groups + g;
            uint16_t *to = out + 2 * (g * m->rows + o);

            to[0] = scales[from];
            if (!int4pack_offset(&to[1], scales[from], m->scale_dtype,
                                 zeros[from]))
                return err_set(e, E_CONFIG,
                               "%s: the scale of output %" PRIu64
                               ", group %" PRIu64 " times 8 less its zero, %d, "
                               "is beyond %s",
                               m->name, o, g, zeros[from],
                               dtype_name(m->scale_dtype));
        }
    return 0;
}

static int pack_int4pack(struct packer *p, const struct pack_module *m,
                         struct packed_tensor *out, struct err *e)
{
    const uint32_t *codes;
    int n = put_ordered(p, m, 2, out, &codes, e);

    if (n < 0 || need(&p->weight_out, m->rows * (m->cols / 2), 1, e) ||
        pack_offsets(p, m, e))
        return e->code;
    int4pack_pack(p->weight_out.data, codes, m->rows, m->cols / 8,
                  p->run->capability);
    out[0] = part("weight_int4pack", DT_U8, m->rows, m->cols / 2, 0,
                  p->weight_out.data);
    out[1] = part("scales_and_zeros", m->scale_dtype, m->groups, m->rows, 2,
                  p->scales_out.data);
    return n;
}

/* torch's XPU product reads the words of the stream as they are, and transposed
 * scales and zeros. */
static int pack_xpu(struct packer *p, const struct pack_module *m,
                    struct packed_tensor *out, struct err *e)
{
    const uint8_t *zeros = p->zeros.data;
    const uint32_t *codes;
    int n = put_ordered(p, m, 3, out, &codes, e);
    uint8_t *to;

    if (n < 0 || need(&p->scales_out, m->rows * m->groups, 2, e) ||
        need(&p->zeros_out, m->rows * m->groups, 1, e))
        return e->code;
    pack_transpose_u16(p->scales_out.data, p->scales.data, m->rows, m->groups);
    to = p->zeros_out.data;
    for (uint64_t g = 0; g < m->groups; g++)
        for (uint64_t o = 0; o < m->rows; o++)
            to[g * m->rows + o] = zeros[o * m->groups + g];
    out[0] = part("weight_int4pack", DT_I32, m->rows, m->cols / 8, 0, codes);
    out[1] = part("scales", m->scale_dtype, m->groups, m->rows, 0,
                  p->scales_out.data);
    out[2] = part("zeros", DT_I8, m->groups, m->rows, 0, p->zeros_out.data);
    return n;
}

static int pack_layout(struct packer *p, const struct pack_module *m,
                       struct packed_tensor *out, struct err *e)
{
    switch (p->run->layout) {
    case LAYOUT_CT: return pack_ct(p, m, out, e);
    case LAYOUT_INT4PACK: return pack_int4pack(p, m, out, e);
    case LAYOUT_INT4PACK_XPU: return pack_xpu(p, m, out, e);
    default: return pack_awq_gptq(p, m, out, e);
    }
}

int packer_module(struct packer *p, const struct pack_module *given,
                  struct packed_tensor *out, struct err *e)
{
    struct pack_module as = *given, *m = &as; /* scale_dtype as stored */
    struct layout_shape s = { m->name, m->rows, m->cols };
    bool symmetric = true;
    int n;

    if (layout_check_bits(p->run->layout, m->bits, m->name, e) ||
        make_grid(p, m, &symmetric, e) || check_index(m, e) ||
        agree(p->run, m, symmetric, e) || agree_order(p->run, m, e) ||
        layout_check(p->run->layout, p->run->symmetric > 0, m->group, &s, &s, 1,
                     e))
        return e->code;
    p->symmetric = p->run->mixed ? symmetric : p->run->symmetric;
    n = pack_layout(p, m, out, e);
    if (n > 0)
        p->run->modules++;
    return n;
}
