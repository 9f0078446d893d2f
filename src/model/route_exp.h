/* route_exp.h - e^x of a router's scores, to the same bits on the CPU and on a
 * GPU: products and sums in double, each rounded by itself, in one order. */
#ifndef FORGE_ROUTE_EXP_H
#define FORGE_ROUTE_EXP_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ROUTE_EXP       static __device__ __forceinline__
#define ROUTE_MUL(a, b) __dmul_rn(a, b)
#define ROUTE_ADD(a, b) __dadd_rn(a, b)
#else
#define ROUTE_EXP       static inline
#define ROUTE_MUL(a, b) ((a) * (b)) /* with -ffp-contract=off */
#define ROUTE_ADD(a, b) ((a) + (b))
#endif

/* e^x of a finite x as f32, infinity from 88.73 on: 2^n e^r with |r| <= ln2 / 2,
 * e^r by its Taylor polynomial of degree 11, whose error is 7e-15.  So the result
 * is the nearest float for all but one x in 10^6. */
ROUTE_EXP float route_exp(float x)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds */
    double y = x < -104.0f ? -104.0 : x > 89.0f ? 89.0 : (double)x;
    double t = ROUTE_ADD(ROUTE_MUL(y, 1.4426950408889634), magic);
    double n = ROUTE_ADD(t, -magic);
    double r = ROUTE_ADD(y, ROUTE_MUL(n, -0.6931471805599453));
    double p = 1.0 / 39916800, power;
    uint64_t bits;

    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0 / 3628800);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0 / 362880);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0 / 40320);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0 / 5040);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0 / 720);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0 / 120);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0 / 24);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0 / 6);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 0.5);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0);
    p = ROUTE_ADD(ROUTE_MUL(p, r), 1.0);
    memcpy(&bits, &t, sizeof(bits)); /* its lowest bits are n's */
    bits = (bits + 1023) << 52;
    memcpy(&power, &bits, sizeof(power));
    return (float)ROUTE_MUL(p, power);
}

#endif
