/* bf16_kernel_list.h - the kernels of x86-64: bf16_kernel_x86.c and
 * bf16_kernel_amx.c. */
#ifndef FORGE_BF16_KERNEL_LIST_H
#define FORGE_BF16_KERNEL_LIST_H

struct bf16_kernel;

#ifdef __x86_64__
extern const struct bf16_kernel kernel_avx2, kernel_avx512, kernel_avx512bf16,
    kernel_amx;
/* A thread's tiles: configure them, and give them up, so that the system need
 * not save them any more. */
void kernel_amx_begin(void);
void kernel_amx_end(void);
#endif

#endif
