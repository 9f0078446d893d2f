/* kernels_plain.c - kernels for any CPU: vectors of four floats. */
#include "model/kernels.h"
#include "model/kernels_list.h"

#define W              4
#define NV             2
#define V_FMA(a, b, c) ((a) * (b) + (c))
#define V_MAX(a, b)    ((vf)v_pick((a) > (b), (vu)(a), (vu)(b)))
#define V_MIN(a, b)    ((vf)v_pick((a) < (b), (vu)(a), (vu)(b)))
#define KERNELS        kernels_plain
#define NAME           "plain"

#include "model/kernels.inc"
