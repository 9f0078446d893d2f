/* convert.c - the tensors of a GGUF file: see convert.h. */
#include "gguf/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/file.h"
#include "common/io/hash.h"
#include "common/math/quant.h"
#include "gguf/blocks.h"
#include "gguf/scales.h"
#include "model/rope.h"

/* Room for a part of a tensor, used again for the next. */
struct writer {
    struct gguf_plan *p;
    struct publish *out;
    uint8_t *buf;
    size_t cap;
    XXH3_state_t *hash; /* of the tensor's bytes so far */
    uint64_t *digest;   /* [p->n + 1] */
};

/* ---- what is read ---- */

/* A tensor of the checkpoint, in memory. */
struct source {
    struct ck_quantized q; /* codes, if it is packed, ... */
    uint16_t *scales;
    uint8_t *raw; /* ... else elements of this type */
    enum dtype dtype;
};

static void source_release(struct source *s)
{
    ck_quantized_release(&s->q);
    free(s->scales);
    free(s->raw);
}

static int read_codes(struct writer *w, const char *module, struct source *s,
                      struct err *e)
{
    int rc = checkpoint_quantized(w->p->c, module, &s->q, e);

    if (rc > 0 && !(s->scales = gguf_scales(&s->q, module, e)))
        rc = e->code;
    return rc < 0 ? rc : 0;
}

/* Read t, a linear's tensor if `module`, in elements of a float type. */
static int read_raw(struct writer *w, const struct ck_tensor *t,
                    const char *module, struct source *s, struct err *e)
{
    uint64_t rows, cols, n = t->bytes * 8 / dtype_bits(t->dtype);
    float *wide;
    int rc = 0;

    if (module) { /* inputs become outputs, and groups no longer lie in rows */
        if (checkpoint_linear(w->p->c, module, &wide, &rows, &cols, e))
            return e->code;
        s->raw = (uint8_t *)wide;
        s->dtype = DT_F32;
        n = rows * cols;
    } else if (!(s->raw = mem_pages(t->bytes, t->name, e)) ||
               checkpoint_read(w->p->c, t, s->raw, e)) {
        return e->code;
    }
    if (!isfinite(dtype_most(s->raw, s->dtype, n)))
        rc = err_set(e, E_DATA, "'%.200s' has a value that is not finite",
                     module ? module : t->name);
    return rc;
}

/* x: what is made of t.  source_release() *s in any case. */
static int read_source(struct writer *w, const struct gguf_item *x,
                       const struct ck_tensor *t, struct source *s,
                       struct err *e)
{
    char module[1024];
    bool first, part;

    *s = (struct source){ .dtype = t->dtype };
    part = checkpoint_part(w->p->c, t, module, sizeof(module), &first);
    if (x->packed)
        return part ? read_codes(w, module, s, e) :
                      err_set(e, E_BUG, "'%.200s': no part", t->name);
    return read_raw(w, t, part ? module : NULL, s, e);
}

/* ---- what is written ---- */

/* Rows of x, from row `first` of the source on, in their order; elements of
 * `size` bytes. */
static void arrange(uint8_t *to, const struct gguf_item *x, const uint8_t *raw,
                    uint64_t first, size_t size)
{
    uint64_t rows = x->rows ? x->rows : x->cols;
    uint64_t cols = x->rows ? x->cols : 1;

    for (uint64_t r = 0; r < rows; r++)
        if (x->form != GGUF_KEYS)
            memcpy(to + r * cols * size,
                   raw + (first + block_row(r, x->head)) * cols * size,
                   cols * size);
        else
            for (uint64_t i = 0; i < cols; i++)
                memcpy(to + (r * cols + i) * size,
                       raw + ((first + i) * rows + r) * size, size);
}

static void pack_codes(struct writer *w, const struct gguf_item *x,
                       const struct source *s, uint64_t first)
{
    const struct ck_quantized *q = &s->q;
    const struct block_codes b = {
        .rows = x->rows,
        .cols = q->cols,
        .groups = q->groups,
        .group = q->group,
        .head = x->head,
        .codes = q->codes + first * quant_row_bytes(q->cols, q->bits),
        .zeros = q->zeros + first * q->groups,
        .scales = s->scales + first * q->groups
    };

    block_codes_pack(w->buf, x->type, &b);
}

static int pack_plain(struct writer *w, const struct gguf_item *x,
                      const struct source *s, uint64_t first, struct err *e)
{
    uint64_t n = gguf_part_elements(x);
    size_t size = dtype_bits(s->dtype) / 8;
    uint8_t *turned;
    float *wide;
    int rc = 0;

    if (x->type == GGUF_BF16 || x->type == GGUF_F16) {
        arrange(w->buf, x, s->raw, first, size);
        return 0;
    }
    turned = mem_pages(n * size, x->name, e);
    wide = turned ? mem_pages(n * sizeof(*wide), x->name, e) : NULL;
    if (!wide)
        rc = e->code;
    else
        arrange(turned, x, s->raw, first, size);
    if (!rc && !to_f32(wide, turned, s->dtype, n))
        rc = err_set(e, E_DATA, "'%.200s': no float", x->name);
    if (!rc && x->type == GGUF_Q8_0 &&
        !(dtype_most(wide, DT_F32, n) <= 127 * 65504.0f))
        rc = err_set(e, E_CONFIG, "'%.200s': a block's scale is beyond F16",
                     x->name);
    if (!rc && x->type == GGUF_Q8_0)
        block_q8_0(w->buf, wide, n);
    else if (!rc)
        memcpy(w->buf, wide, n * sizeof(*wide));
    free(wide);
    free(turned);
    return rc;
}

/* Append n bytes of the tensor. */
static int emit(struct writer *w, uint64_t n, struct err *e)
{
    XXH3_64bits_update(w->hash, w->buf, n);
    return publish_write(w->out, w->buf, n, e);
}

/* Append part i of x. */
static int write_part(struct writer *w, const struct gguf_item *x,
                      const struct source *s, uint64_t i, struct err *e)
{
    const struct model_config *c = &w->p->config;
    uint64_t first = 0;
    int rc = 0;

    if (x->form == GGUF_KEYS || x->form == GGUF_VALUES)
        first = i * (uint64_t)(c->mla.nope + c->v_dim);
    if (x->form == GGUF_VALUES)
        first += (uint64_t)c->mla.nope;
    if (x->packed)
        pack_codes(w, x, s, first);
    else
        rc = pack_plain(w, x, s, first, e);
    return rc ? rc : emit(w, gguf_bytes(x->type, gguf_part_elements(x)), e);
}

static int write_parts(struct writer *w, const struct gguf_item *x,
                       struct err *e)
{
    uint64_t parts = x->parts ? x->parts : 1;
    struct source s = { 0 };
    int rc = 0;

    for (uint64_t i = 0; i < parts && !rc; i++) {
        if (!i || x->form == GGUF_STACK) {
            source_release(&s);
            rc = read_source(w, x, x->from[i], &s, e);
        }
        if (!rc)
            rc = write_part(w, x, &s, i, e);
    }
    source_release(&s);
    return rc;
}

/* to [rotary / 2]: what llama3's RoPE divides the frequencies by. */
static int rope_factors(float *to, const struct model_config *c, struct err *e)
{
    struct rope plain = c->rope;
    float *inv = mem_alloc((size_t)c->rotary * sizeof(*inv), "GGUF", e);

    if (!inv)
        return e->code;
    plain.kind = ROPE_DEFAULT;
    rope_frequencies(&plain, c->rotary, to);
    rope_frequencies(&c->rope, c->rotary, inv);
    for (int64_t i = 0; i < c->rotary / 2; i++)
        to[i] /= inv[i];
    free(inv);
    return 0;
}

static int write_item(struct writer *w, const struct gguf_item *x,
                      uint64_t *digest, struct err *e)
{
    uint64_t odd = gguf_item_bytes(x) % GGUF_ALIGN;
    uint64_t bytes = gguf_bytes(x->type, gguf_part_elements(x));
    int rc = mem_reserve(&w->buf, &w->cap, bytes + GGUF_ALIGN, "GGUF", e);

    if (rc)
        return rc;
    XXH3_64bits_reset(w->hash);
    if (x->from)
        rc = write_parts(w, x, e);
    else if (!(rc = rope_factors((float *)(void *)w->buf, &w->p->config, e)))
        rc = emit(w, bytes, e);
    *digest = XXH3_64bits_digest(w->hash);
    memset(w->buf, 0, GGUF_ALIGN);
    return rc || !odd ? rc : publish_write(w->out, w->buf, GGUF_ALIGN - odd, e);
}

static int write_items(struct writer *w, const struct gguf_buffer *head,
                       struct progress *progress, struct err *e)
{
    struct gguf_plan *p = w->p;
    int rc = publish_write(w->out, head->data, head->len, e);

    for (size_t i = 0; i < p->n && !rc; i++) {
        const struct gguf_item *x = &p->item[i];

        rc = write_item(w, x, &w->digest[i], e);
        if (!rc)
            progress_step(progress, x->name, gguf_item_bytes(x));
    }
    w->digest[p->n] = XXH3_64bits(head->data, head->len);
    return rc ? rc :
                publish_rewrite(w->out, w->digest,
                                (p->n + 1) * sizeof(*w->digest), p->digests, e);
}

int gguf_write(struct gguf_plan *p, const char *out, struct progress *progress,
               struct err *e)
{
    struct writer w = { .p = p };
    struct gguf_buffer head;
    int rc = gguf_head(&p->head, &head, e);

    if (rc)
        return rc;
    w.digest = mem_zero(p->n + 1, sizeof(*w.digest), "GGUF", e);
    w.hash = w.digest ? XXH3_createState() : NULL;
    if (!w.hash)
        rc = err_set(e, E_TEMP, "GGUF: out of memory");
    else
        rc = publish_create(&w.out, out, e);
    if (!rc) {
        rc = write_items(&w, &head, progress, e);
        if (rc)
            publish_discard(w.out);
        else
            rc = publish_commit(w.out, e);
    }
    XXH3_freeState(w.hash);
    free(w.digest);
    free(head.data);
    free(w.buf);
    return rc;
}
