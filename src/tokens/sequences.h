/* sequences.h - inputs of every kind to calibration sequences. */
#ifndef FORGE_SEQUENCES_H
#define FORGE_SEQUENCES_H

#include "tokens/input.h"
#include "tokens/sequence_list.h"
#include "tokenizer/tokenizer.h"

/* Text: encoded once, without special tokens; each sequence is the prefix of
 * the post-processor, the next ids of the stream, its suffix.  Sequences do
 * not overlap, and a last one that is not full is left out.  Unless `whole`,
 * line ends of plain text are read as Python does, CR LF and CR as LF.
 * JSON lines with "text": each record is encoded by itself, and the ids are
 * joined.  JSON lines with "input_ids", and .npy: sequences as they are, cut
 * to seqlen.  Reads no more of the input than is needed.
 * E_DATA: not what the format says, no whole sequence, or an id not below
 * vocab_size; E_CONFIG: a tokenizer that gives such ids; E_USAGE: params that
 * do not fit the input. */
MUST_CHECK int sequences_read(struct sequences *s,
                              const struct sequences_params *p,
                              struct input *in, struct err *e);

#endif
