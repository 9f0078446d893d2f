/* kernels_list.h - the kernels that kernels.c chooses from. */
#ifndef FORGE_KERNELS_LIST_H
#define FORGE_KERNELS_LIST_H

struct kernels;

extern const struct kernels kernels_plain;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512, kernels_avx512bf16;
#elif defined(__aarch64__)
extern const struct kernels kernels_neon;
#endif

#endif
