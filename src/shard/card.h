/* card.h - writes the model card of a checkpoint: README.md, with the YAML
 * front matter that model hubs read. */
#ifndef FORGE_CARD_H
#define FORGE_CARD_H

#include "checkpoint/cardtext.h"
#include "layout/layout.h"
#include "shard/provenance.h"

/* The linears that are quantized. */
struct card_linears {
    uint64_t four, eight;    /* their numbers, by bits */
    uint64_t whole;          /* of these, with one scale for each output */
    bool differ;             /* in bits or group, as the config says them */
    uint64_t weights, bytes; /* of all; bytes: of all their tensors */
};

struct card {
    const char *base; /* name of the source model: card_base() */
    const struct provenance *about;
    const char *recipe;            /* one step per line */
    const struct run_facts *facts; /* NULL: not quantized (pruned) */
    struct card_linears linears;
    uint64_t tensors, bytes;
    bool experts; /* the model is a mixture of experts */
    bool zeros;   /* of compressed-tensors: some linear has zero points */
};

/* The name of the model in a directory: the base model that its card names, if
 * the card is ours; else ORG/NAME, if the directory lies in Hugging Face's
 * cache; else the directory's name.  free() it.  NULL with *e. */
MUST_CHECK char *card_base(const struct modeldir *model, struct err *e);
/* *text = the card.  Of the model's own card the front matter about licence,
 * languages and use is copied (license*, language, pipeline_tag, library_name),
 * but not its text, which is about other weights.  free() *text. */
MUST_CHECK int card_write(const struct card *c, const struct modeldir *model,
                          char **text, size_t *len, struct err *e);

#endif
