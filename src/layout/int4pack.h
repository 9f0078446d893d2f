/* int4pack.h - tiles of 4-bit codes as
 * torch.ops.aten._weight_int4pack_mm_for_cpu() reads them.
 *
 * Codes q[o][k] of O outputs and I inputs are divided into tiles of T outputs,
 * 64 with AVX-512, else 32; the last one has nb = O mod T outputs if that is
 * not 0.  A tile begins at byte o0 * I / 2, o0 its first output; input k has
 * the nb / 2 bytes from k * nb / 2 on, and byte i holds two outputs of the
 * tile:
 *
 *     low nibble i,  high i + nb/2    avx512 and avx2, a full tile
 *     low nibble 2i, high 2i + 1      other tiles, and all for `default`
 *
 * Source: aten/src/ATen/native/cpu/int4mm_kernel.cpp;
 * tests/reference/int4pack_golden.jsonl has torch's output.  So the bytes suit
 * CPUs of one capability only.  The product computes (q - 8) s + z in the type
 * of s, with z = (8 - zero) s. */
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

/* "avx512"; c is not INT4PACK_UNKNOWN. */
const char *int4pack_name(enum int4pack_capability c);
/* INT4PACK_UNKNOWN: no capability has this name. */
enum int4pack_capability int4pack_parse(const char *name);
/* This machine's, as torch chooses without $ATEN_CPU_CAPABILITY;
 * INT4PACK_UNKNOWN off x86-64, where torch's tiles have not been verified. */
enum int4pack_capability int4pack_here(void);

/* Codes to tiles and back.  codes [rows, words] u32, words = I / 8, the first
 * input in the low nibble; rows: O, a multiple of 16; packed [O * I / 2]
 * bytes.  By all threads. */
void int4pack_pack(uint8_t *packed, const uint32_t *codes, uint64_t rows,
                   uint64_t words, enum int4pack_capability c);
void int4pack_unpack(uint32_t *codes, const uint8_t *packed, uint64_t rows,
                     uint64_t words, enum int4pack_capability c);

/* order[inputs]: the inputs of group 0 in ascending order, then those of group
 * 1, ...  index [inputs]: group of each input, below inputs / group; NULL:
 * input / group.  False: a group does not have exactly `group` inputs. */
bool int4pack_order(int32_t *order, const int32_t *index, uint64_t inputs,
                    uint64_t group);

/* *offset = (8 - zero) * scale rounded to t, DT_F16 or DT_BF16; false: out of
 * range. */
bool int4pack_offset(uint16_t *offset, uint16_t scale, enum dtype t, int zero);
/* The zero of an offset; 8 if scale is 0; -1: the offset is not a multiple of
 * scale. */
int int4pack_zero(uint16_t offset, uint16_t scale, enum dtype t);

#endif
