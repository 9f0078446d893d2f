/* int4pack.h - the tiles that torch's CPU product reads,
 * torch.ops.aten._weight_int4pack_mm_for_cpu().
 *
 * Codes q[o][k] of O outputs and I inputs are cut into tiles of T outputs, 64
 * with AVX-512, else 32; the last has the nb = O mod T that are left.  A tile
 * starts at byte o0 * I / 2; its input k has the nb / 2 bytes from k * nb / 2
 * on, and byte i holds two outputs of the tile:
 *
 *     low nibble i,  high i + nb/2    avx512 and avx2, a tile that is full
 *     low nibble 2i, high 2i + 1      else, and everywhere by default
 *
 * (aten/src/ATen/native/cpu/int4mm_kernel.cpp; tests/data/int4pack.json has
 * what torch made.)  So the bytes are for CPUs of one capability alone.  The
 * product computes (q - 8) s + z in the type of s: z = (8 - zero) s. */
#ifndef FORGE_INT4PACK_H
#define FORGE_INT4PACK_H

#include "common/math/dtype.h"

/* torch.backends.cpu.get_cpu_capability(), in lower case. */
enum int4pack_capability {
    INT4PACK_AVX512,
    INT4PACK_AVX2,
    INT4PACK_DEFAULT,
    INT4PACK_UNKNOWN
};
#define INT4PACK_WORDS "avx512|avx2|default"

const char *int4pack_name(enum int4pack_capability c);
/* INT4PACK_UNKNOWN: no capability has this name. */
enum int4pack_capability int4pack_parse(const char *name);
/* This machine's, as torch decides without ATEN_CPU_CAPABILITY; unknown where
 * it is no x86-64: torch's tiles there were not seen. */
enum int4pack_capability int4pack_here(void);

/* codes: rows of words [O, I/8], the first input in the low nibble; rows is a
 * multiple of 16, words = I / 8; packed [O * I / 2].  Threads as threads_set()
 * said. */
void int4pack_pack(uint8_t *packed, const uint32_t *codes, uint64_t rows,
                   uint64_t words, enum int4pack_capability c);
void int4pack_unpack(uint32_t *codes, const uint8_t *packed, uint64_t rows,
                     uint64_t words, enum int4pack_capability c);

/* (8 - zero) * scale, rounded to t, F16 or BF16; false: beyond its range. */
bool int4pack_offset(uint16_t *offset, uint16_t scale, enum dtype t, int zero);
/* The zero that this offset is of, 8 where scale is 0; -1: it is of none. */
int int4pack_zero(uint16_t offset, uint16_t scale, enum dtype t);

#endif
