/* kernels.c - see kernels.h: which kernels this machine can run. */
#include "model/kernels.h"

#include <string.h>

#include "model/kernels_list.h"

#ifdef __x86_64__
static bool has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool has_avx512bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

const struct kernels *kernels_best(void)
{
#ifdef __x86_64__
    if (has_avx512bf16())
        return &kernels_avx512bf16;
    if (has_avx512())
        return &kernels_avx512;
    if (has_avx2())
        return &kernels_avx2;
#endif
    return &kernels_plain;
}

const struct kernels *kernels_find(const char *name)
{
#ifdef __x86_64__
    if (!strcmp(name, kernels_avx512bf16.name))
        return has_avx512bf16() ? &kernels_avx512bf16 : NULL;
    if (!strcmp(name, kernels_avx512.name))
        return has_avx512() ? &kernels_avx512 : NULL;
    if (!strcmp(name, kernels_avx2.name))
        return has_avx2() ? &kernels_avx2 : NULL;
#endif
    return strcmp(name, kernels_plain.name) ? NULL : &kernels_plain;
}
