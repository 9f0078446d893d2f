/* safetensors.h - the header of a .safetensors file.
 *
 *     u64 n (little-endian) | n bytes of JSON | data
 *     { "__metadata__": { "format": "pt" },
 *       "NAME": { "dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12] } }
 *
 * Every rule of the official reader holds: the header is at most 100,000,000
 * bytes and in the file, begins with '{', and is padded with blanks only; the
 * tensors' data begin at 0, follow each other without holes or overlaps, and
 * end with the file; shape, dtype and offsets agree.  Beyond it: names that
 * occur twice are refused. */
#ifndef FORGE_SAFETENSORS_H
#define FORGE_SAFETENSORS_H

#include "checkpoint/entry.h"

enum { SAFETENSORS_HEADER_MAX = 100000000 };

/* The JSON text of a header into *text (len bytes, free() it).  what: the
 * file's name in messages, quoted.  E_DATA, E_IO, E_TEMP. */
MUST_CHECK int safetensors_header(struct file *f, const char *what, char **text,
                                  size_t *len, struct err *e);
/* Append the tensors of a header to l in the order of their data.  text: len
 * bytes and a NUL.  size: of the whole file.  E_DATA names the rule that is broken, the tensor and the
 * numbers; l may have grown then. */
MUST_CHECK int safetensors_parse(struct ck_list *l, const char *text,
                                 size_t len, uint64_t size, const char *what,
                                 struct err *e);

#endif
