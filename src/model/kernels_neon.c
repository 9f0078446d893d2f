/* kernels_neon.c - kernels for aarch64. */
#include "model/kernels.h"
#include "model/kernels_list.h"

#ifdef __aarch64__
#include <arm_neon.h>

#define W  4
#define NV 2
#define V_FMA(a, b, c)                                                         \
    ((vf)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define V_MAX(a, b) ((vf)vmaxq_f32((float32x4_t)(a), (float32x4_t)(b)))
#define V_MIN(a, b) ((vf)vminq_f32((float32x4_t)(a), (float32x4_t)(b)))
#define V_WIDEN(a)  ((vu)vmovl_u16((uint16x4_t)(a)))
#define KERNELS     kernels_neon
#define NAME        "neon"

#include "model/kernels.inc"
#endif
