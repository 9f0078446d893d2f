/* convert.c - the tensors of a GGUF file: see convert.h. */
#include "gguf/convert.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/file.h"
#include "gguf/blocks.h"
#include "gguf/scales.h"
#include "model/rope.h"

/* Room for one tensor, used again for the next. */
struct writer {
    struct gguf_plan *p;
    struct publish *out;
    uint8_t *buf;
    size_t cap;
};

static int pack_codes(struct writer *w, const struct gguf_item *x,
                      struct err *e)
{
    struct ck_quantized q;
    struct block_codes b;
    uint16_t *scales = NULL;
    char module[1024];
    bool first;
    int rc;

    if (!checkpoint_part(w->p->c, x->from, module, sizeof(module), &first))
        return err_set(e, E_BUG, "'%.200s': no part", x->from->name);
    rc = checkpoint_quantized(w->p->c, module, &q, e);
    if (rc > 0 && !(scales = gguf_scales(&q, module, e)))
        rc = e->code;
    if (rc > 0) {
        b = (struct block_codes){ .rows = q.rows,
                                  .cols = q.cols,
                                  .groups = q.groups,
                                  .group = q.group,
                                  .head = x->head,
                                  .codes = q.codes,
                                  .zeros = q.zeros,
                                  .scales = scales };
        block_codes_pack(w->buf, x->type, &b);
    }
    free(scales);
    ck_quantized_release(&q);
    return rc < 0 ? rc : 0;
}

/* Rows of `size` bytes from raw into their order. */
static void order_rows(uint8_t *to, const uint8_t *raw, uint64_t rows,
                       size_t size, uint64_t head)
{
    for (uint64_t r = 0; r < rows; r++)
        memcpy(to + r * size, raw + block_row(r, head) * size, size);
}

static int pack_plain(struct writer *w, const struct gguf_item *x,
                      struct err *e)
{
    const struct ck_tensor *t = x->from;
    uint64_t n = (x->rows ? x->rows : 1) * x->cols;
    uint64_t rows = x->rows ? x->rows : x->cols;
    uint8_t *raw = mem_pages(t->bytes, t->name, e);
    float *wide = mem_pages(n * sizeof(*wide), t->name, e);
    float *turned = x->head ? mem_pages(n * sizeof(*wide), t->name, e) : wide;
    bool same = x->type == GGUF_BF16 || x->type == GGUF_F16;
    int rc =
        raw && wide && turned ? checkpoint_read(w->p->c, t, raw, e) : e->code;

    if (!rc && same) {
        order_rows(w->buf, raw, rows, t->bytes / rows, x->head);
    } else if (!rc && !to_f32(wide, raw, t->dtype, n)) {
        rc = err_set(e, E_DATA, "'%.200s': no float", t->name);
    } else if (!rc) {
        size_t size = n / rows * sizeof(*wide);

        if (x->head)
            order_rows((uint8_t *)turned, (uint8_t *)wide, rows, size, x->head);
        if (x->type == GGUF_Q8_0)
            block_q8_0(w->buf, turned, n);
        else
            memcpy(w->buf, turned, n * sizeof(*wide));
    }
    if (turned != wide)
        free(turned);
    free(wide);
    free(raw);
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
                      struct progress *progress, struct err *e)
{
    uint64_t n = (x->rows ? x->rows : 1) * x->cols;
    uint64_t bytes = gguf_bytes(x->type, n);
    uint64_t whole = (bytes + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN;
    int rc = mem_reserve(&w->buf, &w->cap, whole, "GGUF", e);

    if (rc)
        return rc;
    memset(w->buf + bytes, 0, whole - bytes);
    if (!x->from)
        rc = rope_factors((float *)(void *)w->buf, &w->p->config, e);
    else
        rc = x->packed ? pack_codes(w, x, e) : pack_plain(w, x, e);
    if (!rc)
        rc = publish_write(w->out, w->buf, whole, e);
    if (!rc)
        progress_step(progress, x->name, whole);
    return rc;
}

int gguf_write(struct gguf_plan *p, const char *out, struct progress *progress,
               struct err *e)
{
    struct writer w = { .p = p };
    struct gguf_buffer head;
    int rc = gguf_head(&p->head, &head, e);

    if (rc)
        return rc;
    rc = publish_create(&w.out, out, e);
    if (rc) {
        free(head.data);
        return rc;
    }
    rc = publish_write(w.out, head.data, head.len, e);
    for (size_t i = 0; i < p->n && !rc; i++)
        rc = write_item(&w, &p->item[i], progress, e);
    free(head.data);
    free(w.buf);
    if (!rc)
        return publish_commit(w.out, e);
    publish_discard(w.out);
    return rc;
}
