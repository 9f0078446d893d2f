/* cpu.h - which instructions kernels use: one level for the whole process.
 *
 * Each level includes those before it of the same architecture:
 *
 *     plain         what the compiler may assume
 *     avx2          x86-64: AVX2, FMA, F16C (Haswell, Zen)
 *     avx512        ... and AVX-512 F, BW, DQ, VL (Skylake-SP, Ice Lake)
 *     avx512bf16    ... and AVX512_BF16 (Cooper Lake, Zen 4)
 *     amx           ... and AMX tiles of bf16 (Sapphire Rapids)
 *     neon          aarch64: Advanced SIMD
 *     neonbf16      ... and BF16 (Neoverse V1, Graviton 3)
 *
 * $FORGE_CPU lowers a tool's level; opt_parse() reads it.  Kernels are chosen
 * at each call, so that a test can run all levels. */
#ifndef FORGE_CPU_H
#define FORGE_CPU_H

#include "common/base.h"

/* The levels above; higher numbers of one architecture include lower ones. */
enum cpu_level {
    CPU_PLAIN,
    CPU_AVX2,
    CPU_AVX512,
    CPU_AVX512BF16,
    CPU_AMX,
    CPU_NEON,
    CPU_NEONBF16,
    CPU_LEVELS
};

/* "avx2" */
const char *cpu_level_name(enum cpu_level l);
/* Whether this is the name of a level, of any architecture. */
bool cpu_level_known(const char *name);
/* Whether this machine has the level.  The first call asks the system for what
 * it needs (AMX: permission to use tiles). */
bool cpu_has(enum cpu_level l);
/* The level in use: the machine's highest, unless a lower one was chosen. */
enum cpu_level cpu_level(void);
/* Whether kernels may use the instructions of level l now. */
bool cpu_uses(enum cpu_level l);
/* Whether kernels may use instructions that only some CPUs of a level have and
 * that do not change results: byte permutations (AVX512_VBMI, from avx512 on),
 * sums of four products of bytes (AVX_VNNI at avx2, AVX512_VNNI from avx512 on)
 * and CRC-32C (SSE 4.2 from avx2 on, ARMv8 from neon on). */
bool cpu_uses_vbmi(void);
bool cpu_uses_vnni(void);
bool cpu_uses_crc32c(void);
bool cpu_is_intel(void);
/* Whether vdpbf16ps, a product of pairs of bf16, is slower than two f32
 * multiply-adds: on Intel CPUs it has a quarter of their throughput. */
bool cpu_slow_pairs(void);
/* Use the level of this name; NULL or "" changes nothing.  E_USAGE: not a
 * level; E_CONFIG: this machine does not have it. */
MUST_CHECK int cpu_choose(const char *name, struct err *e);
/* Use level l if the machine has it; for tests. */
void cpu_set(enum cpu_level l);
/* Whether cpu_uses_vnni() may be true, as at first; for tests. */
void cpu_set_vnni(bool use);

#endif
