/* completion.h - from a prompt to the generated text: template, tokenizer, model,
 * sampler. */
#ifndef FORGE_COMPLETION_H
#define FORGE_COMPLETION_H

#include "generate/chat.h"
#include "generate/generate.h"
#include "generate/sample.h"
#include "generate/settings.h"
#include "tokenizer/ids.h"

struct tokenizer;

/* What generation needs; the caller opens and closes the parts. */
struct completer {
    struct tokenizer *tokenizer;
    struct decoder *decoder;
    struct chat *chat; /* formats prompts; NULL: prompts are used as they are */
    const char *system; /* system message; NULL: the template's default */
    struct generator *generator;
    struct generate_settings settings;
    struct sampler sampler;
    int64_t tokens; /* most tokens to generate for a prompt */
};

/* The result for a prompt; completion_release() it, also after an error. */
struct completion {
    struct token_ids prompt, made; /* ids of the prompt; generated ids */
    struct text text;              /* the generated text */
    bool stopped; /* an end token was generated; false: the limit was reached */
    double prompt_seconds, seconds; /* time of the prompt; of the generated
                                     * tokens */
};

/* Generate text for prompt[len].  out (or NULL) is called with each piece of
 * text as it is determined.  Errors as tokenizer_encode(), chat_prompt(),
 * generator_append(), or those of out; E_DATA: a prompt without tokens. */
MUST_CHECK int complete(struct completer *s, const char *prompt, size_t len,
                        int (*out)(void *arg, const char *text, size_t n,
                                   struct err *e),
                        void *arg, struct completion *to, struct err *e);
void completion_release(struct completion *s);

#endif
