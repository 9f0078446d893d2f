/* safetensors.h - parses the header of a .safetensors file.
 *
 *     u64 n (little-endian) | n bytes of JSON | data
 *     { "__metadata__": { "format": "pt" },
 *       "NAME": { "dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12] } }
 *
 * The rules of the official reader hold: the header has at most 100,000,000
 * bytes, lies in the file, begins with '{' and is padded with blanks; data of
 * the tensors begin at 0, are contiguous without overlap, and end with the
 * file; shape, dtype and offsets agree.  In addition duplicate names are
 * refused. */
#ifndef FORGE_SAFETENSORS_H
#define FORGE_SAFETENSORS_H

#include "checkpoint/entry.h"

enum { SAFETENSORS_HEADER_MAX = 100000000 };

/* Read the JSON text of the header: *text [*len], free() it.  what: the quoted
 * file name, for messages.  E_DATA, E_IO, E_TEMP. */
MUST_CHECK int safetensors_header(struct file *f, const char *what, char **text,
                                  size_t *len, struct err *e);
/* Append the tensors of a header to l, in the order of their data.  text[len]
 * is followed by a NUL; size: of the file.  E_DATA: names the rule, the tensor
 * and the numbers; l may have grown. */
MUST_CHECK int safetensors_parse(struct ck_list *l, const char *text,
                                 size_t len, uint64_t size, const char *what,
                                 struct err *e);

#endif
