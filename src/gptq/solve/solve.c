/* solve.c - see solve.h: the GPU of this process, or the CPU. */
#include "gptq/solve/solve.h"

#include "device/device.h"

int solve_build(struct factor **f, const struct factor_params *p,
                const float *h, struct err *e)
{
    int rc;

    if (device_gpu()) {
        rc = solve_gpu.build(f, p, h, e);
        if (!device_declined(&rc, e))
            return rc;
    }
    return solve_cpu.build(f, p, h, e);
}

static int solve_linear(struct solve_input *in, int i, struct err *e)
{
    const struct solve_params *p = &in->linear[i].params;
    const void *w = in->linear[i].w;
    const uint32_t *meta = in->linear[i].meta;
    uint8_t *codes = in->linear[i].codes;
    struct solve_result *r = &in->linear[i].result;
    struct factor *f = in->factor;
    int rc;

    if (device_gpu() && (!f || f->gpu)) {
        rc = solve_gpu.run(p, w, meta, f, codes, r, e);
        if (!device_declined(&rc, e))
            return rc;
    }
    if (f && !f->panel && (rc = solve_gpu_fetch(f, e)) < 0)
        return rc;
    return solve_cpu.run(p, w, meta, f, codes, r, e);
}

static int solve_linears(struct solve_input *in, struct err *e)
{
    double start = seconds_now();
    int rc = 0;

    for (int i = 0; i < in->n && rc >= 0; i++)
        rc = solve_linear(in, i, e);
    in->seconds = (seconds_now() - start) / in->n;
    in->solved = rc >= 0;
    return rc;
}

/* Factor and solve an input; on failure solved stays false, without a
 * message. */
static void solve_whole(struct solve_input *in)
{
    struct err none;
    int rc = solve_build(&in->factor, &in->params, in->h, &none);

    if (rc == 0)
        rc = solve_linears(in, &none);
    if (rc == 0)
        return;
    factor_free(in->factor);
    in->factor = NULL;
}

int solve_inputs(struct solve_input *in, int n, struct err *e)
{
    if (n == 1 && (in->factor || !in->h))
        return solve_linears(in, e);
    if (device_gpu())
        return solve_gpu_batch(in, n, e);
    for (int i = 0; i < n; i++)
        solve_whole(&in[i]);
    return 0;
}
