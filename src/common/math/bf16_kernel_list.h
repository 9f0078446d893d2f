/* bf16_kernel_list.h - the kernels defined in bf16_kernel_x86.c and
 * bf16_kernel_amx.c, for bf16_kernel.c. */
#ifndef FORGE_BF16_KERNEL_LIST_H
#define FORGE_BF16_KERNEL_LIST_H

struct bf16_kernel;

#ifdef __x86_64__
extern const struct bf16_kernel kernel_avx2, kernel_avx512, kernel_avx512bf16,
    kernel_amx;
/* Configure the calling thread's tile registers; release them, so that the
 * system need not save their state any more. */
void kernel_amx_begin(void);
void kernel_amx_end(void);
#endif

#endif
