/* sequence_list.h - a list of calibration sequences, and the parameters of
 * making it. */
#ifndef FORGE_SEQUENCE_LIST_H
#define FORGE_SEQUENCE_LIST_H

#include "tokenizer/ids.h"

enum sequences_format { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSONL, FORMAT_NPY };
#define FORMAT_WORDS "auto|text|jsonl|npy"

struct sequences_params {
    int format;         /* enum sequences_format */
    bool whole;         /* no cutting: one sequence per text, record or row */
    int64_t n, seqlen;  /* at most n sequences of seqlen tokens, special tokens
                           included; ignored with `whole` */
    int64_t skip_chars; /* characters to skip at the beginning of a text */
    int64_t vocab_size; /* of the model; 0: unknown */
    const char *model;  /* directory with tokenizer.json; read only for text */
};

/* Sequence i is ids.id[end[i-1]..end[i]-1], with end[-1] = 0.  Zero-initialise;
 * sequences_release() when done. */
struct sequences {
    struct token_ids ids;
    size_t *end;
    size_t count, cap;
    const char *format; /* "text", "jsonl text", "jsonl ids", "npy" */
    size_t cut;         /* number of sequences of ids cut to seqlen */
};

/* Add the n ids as a sequence, cut to seqlen unless `whole`.  E_TEMP. */
MUST_CHECK int sequences_add(struct sequences *s,
                             const struct sequences_params *p,
                             const int32_t *id, size_t n, struct err *e);
/* End a sequence: the ids added to s->ids since the last call.  E_TEMP. */
MUST_CHECK int sequences_end(struct sequences *s, struct err *e);
void sequences_release(struct sequences *s);

#endif
