/* sequences.h - inputs of every kind to calibration sequences. */
#ifndef FORGE_SEQUENCES_H
#define FORGE_SEQUENCES_H

#include "tokens/input.h"
#include "tokens/tokenizer.h"

enum sequences_format { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSONL, FORMAT_NPY };
#define FORMAT_WORDS "auto|text|jsonl|npy"

struct sequences_params {
    int format;         /* enum sequences_format */
    bool whole;         /* no cutting: one sequence a text, record or row */
    int64_t n, seqlen;  /* at most n sequences; of seqlen, special tokens
                             included */
    int64_t skip_chars; /* characters of text to leave out in front */
    int64_t vocab_size; /* of the model; 0: unknown */
    const char *model;  /* where tokenizer.json is; opened only for text */
};

/* Sequence i is ids.id[end[i-1] .. end[i]), end[-1] = 0. */
struct sequences {
    struct token_ids ids;
    size_t *end;
    size_t count, cap;
    const char *format; /* "text", "jsonl text", "jsonl ids", "npy" */
    size_t cut;         /* sequences of ids that were longer than seqlen */
};

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
void sequences_release(struct sequences *s);

/* The .npy reader (npy.c): int32 or int64, [n, T] or [T], little-endian. */
MUST_CHECK int sequences_npy(struct sequences *s,
                             const struct sequences_params *p, struct input *in,
                             struct err *e);
/* Add a sequence of ids as it is. */
MUST_CHECK int sequences_add(struct sequences *s,
                             const struct sequences_params *p,
                             const int32_t *id, size_t n, struct err *e);

#endif
