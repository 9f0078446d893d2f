/* cpu.h - which instructions kernels use: one level for the whole program.
 *
 * Each level has what those before it of the same architecture have:
 *
 *     plain         what the compiler may assume
 *     avx2          x86-64: AVX2, FMA, F16C (Haswell, Zen)
 *     avx512        ... and AVX-512 F, BW, DQ, VL (Skylake-SP, Ice Lake)
 *     avx512bf16    ... and AVX512_BF16 (Cooper Lake, Zen 4)
 *     amx           ... and AMX tiles of bf16 (Sapphire Rapids)
 *     neon          aarch64: Advanced SIMD
 *     neonbf16      ... and BF16 (Neoverse V1, Graviton 3)
 *
 * FORGE_CPU in a tool's environment names a lower one than the machine has;
 * opt_parse() reads it.  Kernels ask at each call, so a test can go through all
 * levels. */
#ifndef FORGE_CPU_H
#define FORGE_CPU_H

#include "common/base.h"

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

const char *cpu_level_name(enum cpu_level l);
/* Whether it is a level's name, of any machine. */
bool cpu_level_known(const char *name);
/* Whether this machine has the level; the first call asks the system for what
 * a level needs (AMX: the process's right to use tiles). */
bool cpu_has(enum cpu_level l);
/* The level in use: the machine's highest, or the one that was chosen. */
enum cpu_level cpu_level(void);
/* Whether kernels may use the instructions of level l. */
bool cpu_uses(enum cpu_level l);
/* The same of instructions that not every CPU of a level has, and whose results
 * are those of plain code: permutations of bytes (AVX512_VBMI, from avx512 on),
 * CRC-32C (SSE 4.2, from avx2 on; ARMv8's, from neon on). */
bool cpu_uses_vbmi(void);
bool cpu_uses_crc32c(void);
/* Whether a product of pairs of bf16 (vdpbf16ps) takes longer than their two fused
 * multiply-adds in f32: Intel's CPUs make one where they make four of these. */
bool cpu_slow_pairs(void);
/* Use a level by name; NULL or "": the highest.  E_USAGE: no level's name;
 * E_CONFIG: this machine has it not. */
MUST_CHECK int cpu_choose(const char *name, struct err *e);
/* The same by number, for tests; the machine has it. */
void cpu_set(enum cpu_level l);

#endif
