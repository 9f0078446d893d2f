/* lent_fp8.c - see lent_fp8.h. */
#include "device/lent_fp8.h"

#include <string.h>

struct lent_fp8 lent_fp8_of(const struct fp8_matrix *m)
{
    return (struct lent_fp8){ .dtype = (uint32_t)m->dtype,
                              .block_rows = m->block_rows,
                              .block_cols = m->block_cols };
}

/* *m = what the frame says, without its memory; false: malformed. */
static bool read_shape(const struct frame *f, struct fp8_matrix *m)
{
    struct lent_fp8 x;

    if (f->about != sizeof(x) || f->dtype != DT_BF16 || f->ndim != 2 ||
        !f->dims[0] || !f->dims[1])
        return false;
    memcpy(&x, f->data, sizeof(x));
    *m = (struct fp8_matrix){ .dtype = (enum dtype)x.dtype,
                              .rows = f->dims[0],
                              .cols = f->dims[1],
                              .block_rows = x.block_rows,
                              .block_cols = x.block_cols };
    return (m->dtype == DT_F8_E4M3 || m->dtype == DT_F8_E5M2) && !x.zero &&
           x.block_rows && x.block_cols;
}

int lent_fp8(struct ledger *l, const struct frame *f, struct fp8_matrix *m,
             struct err *e)
{
    const void *p;
    int rc;

    if (f->role != ROLE_WEIGHT || f->loan.lent != LENT_HOST || !f->about)
        return 0;
    rc = !l                ? err_set(e, E_DATA, "a loan of nobody") :
         !read_shape(f, m) ? err_set(e, E_DATA, "a loan of no 8-bit floats") :
                             ledger_see(l, &f->loan, lent_fp8_bytes(m), &p, e);
    if (rc < 0)
        return err_prefix(e, "'%s'", f->name);
    m->data = p;
    m->scale = (const float *)(const void *)(m->data + lent_fp8_scales(m));
    return 1;
}

int lent_weight(struct ledger *l, const struct frame *f, const void **data,
                struct fp8_matrix *m, struct err *e)
{
    int rc = lent_fp8(l, f, m, e);

    *data = NULL;
    return rc < 0 ? rc : rc ? 0 : ledger_payload(l, f, data, e);
}
