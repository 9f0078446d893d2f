/* w4a16_halves_cuda.cu - x of bf16 as f16, whose products with weights of f16 have scales
 * of f16 as they are.  Floor: x is read once from memory, and written once. */
#include "cuda/w4a16_internal.cuh"

enum { THREADS = 256 };

/* A row of bf16 to f16, times a power of two that brings its largest number to 2^14 or
 * more, but below 2^15: exact from 2^-32 of that on.  unit: the power's inverse.  to may
 * be x. */
static __global__ void __launch_bounds__(THREADS)
    halves_kernel(const uint4 *x, int64_t ld, int pieces, uint4 *to,
                  float *unit)
{
    __shared__ uint32_t largest[THREADS / 32];
    uint32_t most = 0, exponent;
    float power;

    x += blockIdx.x * ld;
    to += (int64_t)blockIdx.x * pieces;
    for (int i = threadIdx.x; i < pieces; i += THREADS) {
        uint4 v = x[i];

        most = __vmaxu2(most, __vmaxu2(v.x & 0x7fff7fff, v.y & 0x7fff7fff));
        most = __vmaxu2(most, __vmaxu2(v.z & 0x7fff7fff, v.w & 0x7fff7fff));
    }
    most = __reduce_max_sync(~0u, max(most & 0xffff, most >> 16));
    if (threadIdx.x % 32 == 0)
        largest[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        most = max(most, largest[i]);
    /* both powers are normal; infinity stays what it is */
    exponent = min(max(most >> 7, 15), 254);
    power = __uint_as_float(268 - exponent << 23);
    if (!threadIdx.x)
        unit[blockIdx.x] = __uint_as_float(exponent - 14 << 23);
    for (int i = threadIdx.x; i < pieces; i += THREADS) {
        uint4 v = x[i];
        uint32_t *two = &v.x;

        for (int k = 0; k < 4; k++) {
            __half2 h =
                __floats2half2_rn(__uint_as_float(two[k] << 16) * power,
                                  __uint_as_float(two[k] & 0xffff0000) * power);

            two[k] = *(const uint32_t *)&h;
        }
        to[i] = v;
    }
}

int w4_halves(struct cuda_context *c, struct w4_launch *l, struct err *e)
{
    int rc;

    if ((rc = buffer_need(c, &c->w4_x, (size_t)(l->rows * l->depth) * 2, e)) <
            0 ||
        (rc = buffer_need(c, &c->w4_unit, (size_t)l->rows * 4, e)) < 0)
        return rc;
    halves_kernel<<<(unsigned)l->rows, THREADS, 0, c->stream>>>(
        (const uint4 *)l->x, l->ldx / 8, (int)(l->depth / 8),
        (uint4 *)c->w4_x.data, (float *)c->w4_unit.data);
    LAUNCHED();
    l->x = c->w4_x.data;
    l->ldx = l->depth;
    l->x_type = FORGE_W4A16_F16;
    l->split = false;
    l->unit = (const float *)c->w4_unit.data;
    return 0;
}
