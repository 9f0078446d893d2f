/* card.h - the model card of a checkpoint: README.md, with the front matter
 * that model hubs read. */
#ifndef FORGE_CARD_H
#define FORGE_CARD_H

#include "common/io/modeldir.h"
#include "layout/layout.h"
#include "shard/provenance.h"

#define CARD_FILE "README.md"
#define CARD_MARK "Made by 4bit-forge" /* in each card of ours */

struct card {
    const char *base; /* name of the model that this was made of */
    const struct provenance *about;
    const char *recipe;            /* a line a step */
    const struct run_facts *facts; /* NULL: nothing is packed */
    uint64_t tensors, bytes;
    bool experts; /* the model is a mixture of experts */
};

/* The name of the model in a directory: ORG/NAME in Hugging Face's cache; what
 * its own card says where a 4-bit checkpoint or pruned model was made of it by
 * this program; else the directory's.  free() it.  NULL with *e. */
MUST_CHECK char *card_base(const struct modeldir *model, struct err *e);
/* How the model in a directory was made, where its card is ours, a line a step;
 * NULL where it does not say, or with e->code where that cannot be read. */
MUST_CHECK char *card_recipe(const struct modeldir *model, struct err *e);
/* The card.  What the model's own says of its licence, languages and use goes
 * along (license*, language, pipeline_tag, library_name); its text, which is
 * about other weights, does not.  free() *text. */
MUST_CHECK int card_write(const struct card *c, const struct modeldir *model,
                          char **text, size_t *len, struct err *e);

#endif
