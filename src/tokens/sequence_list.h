/* sequence_list.h - calibration sequences, as they are made. */
#ifndef FORGE_SEQUENCE_LIST_H
#define FORGE_SEQUENCE_LIST_H

#include "tokenizer/ids.h"

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

/* Add a sequence of ids as it is, cut to seqlen unless `whole`. */
MUST_CHECK int sequences_add(struct sequences *s,
                             const struct sequences_params *p,
                             const int32_t *id, size_t n, struct err *e);
/* End the sequence whose ids were added to s->ids.  E_TEMP. */
MUST_CHECK int sequences_end(struct sequences *s, struct err *e);
void sequences_release(struct sequences *s);

#endif
