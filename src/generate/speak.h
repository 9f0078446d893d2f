/* speak.h - from prompts to texts: tokenizer, template, model, sampler. */
#ifndef FORGE_SPEAK_H
#define FORGE_SPEAK_H

#include "generate/chat.h"
#include "generate/generate.h"
#include "generate/sample.h"
#include "generate/settings.h"
#include "tokenizer/ids.h"

struct tokenizer;

struct speaker {
    struct tokenizer *tokenizer;
    struct decoder *decoder;
    struct chat *chat; /* NULL: the text goes on as it is */
    const char *system;
    struct generator *generator;
    struct generate_settings settings;
    struct sampler sampler;
    int64_t tokens; /* at most, of each text */
};

/* What was made of a prompt. */
struct speech {
    struct token_ids prompt, made;
    struct text text;
    bool stopped; /* by a token that ends a text, not by the number */
    double prompt_seconds, seconds;
};

/* out(arg, text, n): each piece of text as it comes; NULL: none.  Errors as
 * tokenizer_encode(), chat_prompt(), generator_feed(), or what out returns. */
MUST_CHECK int speak(struct speaker *s, const char *prompt, size_t len,
                     int (*out)(void *arg, const char *text, size_t n,
                                struct err *e),
                     void *arg, struct speech *to, struct err *e);
void speech_release(struct speech *s);

#endif
