/* sequences.h - makes calibration sequences of text, JSON lines or arrays of
 * ids. */
#ifndef FORGE_SEQUENCES_H
#define FORGE_SEQUENCES_H

#include "tokens/input.h"
#include "tokens/sequence_list.h"
#include "tokenizer/tokenizer.h"

/* Initialises and fills *s; sequences_release() it, also after an error.
 *
 * Plain text is encoded once, without special tokens, to a stream of ids.  Each
 * sequence is the tokenizer's prefix (post-processor), the next ids of the
 * stream, and the suffix.  Sequences do not overlap; an incomplete last one is
 * left out.  Unless `whole`, line ends are converted as Python does in text
 * mode, CR LF and CR to LF.
 * JSON lines with "text": each record is encoded by itself, and their ids are
 * joined to one stream.  JSON lines with "input_ids", and .npy: each record or
 * row is a sequence, cut to seqlen.  Reads no more of the input than needed; a line
 * of it that says that its writer failed (upstream.h) is an error with its code.
 * E_DATA: not of p->format, less than one sequence, or an id not below
 * vocab_size; E_CONFIG: the tokenizer cannot be used, or gives such an id;
 * E_USAGE: params that do not fit the input; E_IO; E_TEMP. */
MUST_CHECK int sequences_read(struct sequences *s,
                              const struct sequences_params *p,
                              struct input *in, struct err *e);

#endif
