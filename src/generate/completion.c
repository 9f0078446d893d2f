/* completion.c - see completion.h. */
#include "generate/completion.h"

#include <stdlib.h>

#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

static int add_ids(struct token_ids *to, const struct token_ids *from,
                   struct err *e)
{
    return token_ids_add(to, from->id, from->count, e);
}

/* Ids of the prompt.  A chat template writes its special tokens as text;
 * without one, those that the tokenizer puts before a text are added. */
static int encode(struct completer *s, const char *prompt, size_t len,
                  struct token_ids *ids, struct err *e)
{
    size_t valid = unicode_check(prompt, len);
    struct text t = { 0 };
    int rc;

    if (valid < len)
        return err_set(e, E_DATA, "prompt: byte %zu is not valid UTF-8", valid);
    if (!s->chat)
        return add_ids(ids, tokenizer_prefix(s->tokenizer), e) < 0 ?
                   e->code :
                   tokenizer_encode(s->tokenizer, prompt, len, ids, e);
    rc = chat_prompt(s->chat, s->system, prompt, len, &t, e);
    if (!rc)
        rc = tokenizer_encode(s->tokenizer, t.p, t.len, ids, e);
    free(t.p);
    return rc;
}

struct text_sink {
    int (*out)(void *arg, const char *text, size_t n, struct err *e);
    void *arg;
};

/* Pass on the text from offset `at` on. */
static int pass_on(const struct text_sink *v, const struct text *t, size_t at,
                   struct err *e)
{
    return v->out && t->len > at ? v->out(v->arg, t->p + at, t->len - at, e) :
                                   0;
}

static int make_tokens(struct completer *s, const struct text_sink *v,
                       const float *logits, struct completion *to,
                       struct err *e)
{
    const struct model_config *c = generator_config(s->generator);

    for (int64_t n = 0; n < s->tokens; n++) {
        size_t at = to->text.len;
        int32_t id;

        if (sampler_next(&s->sampler, logits, c->vocab_size, &id, e) < 0 ||
            token_ids_add(&to->made, &id, 1, e) < 0)
            return e->code;
        to->stopped = generate_settings_stops(&s->settings, id);
        if (to->stopped)
            return 0;
        if (decoder_add(s->decoder, id, &to->text, e) < 0 ||
            pass_on(v, &to->text, at, e) < 0)
            return e->code;
        if (n + 1 < s->tokens &&
            generator_append(s->generator, &id, 1, &logits, e) < 0)
            return e->code;
    }
    return 0;
}

int complete(struct completer *s, const char *prompt, size_t len,
             int (*out)(void *arg, const char *text, size_t n, struct err *e),
             void *arg, struct completion *to, struct err *e)
{
    const struct text_sink v = { out, arg };
    double start = seconds_now();
    const float *logits;
    size_t at;

    *to = (struct completion){ 0 };
    if (encode(s, prompt, len, &to->prompt, e) < 0)
        return e->code;
    if (!to->prompt.count)
        return err_set(e, E_DATA, "a prompt without a token");
    if (generator_begin(s->generator, (int64_t)to->prompt.count + s->tokens,
                        e) < 0 ||
        generator_append(s->generator, to->prompt.id, (int64_t)to->prompt.count,
                         &logits, e) < 0)
        return e->code;
    to->prompt_seconds = seconds_now() - start;
    if (make_tokens(s, &v, logits, to, e) < 0)
        return e->code;
    to->seconds = seconds_now() - start - to->prompt_seconds;
    at = to->text.len;
    return decoder_end(s->decoder, &to->text, e) < 0 ?
               e->code :
               pass_on(&v, &to->text, at, e);
}

void completion_release(struct completion *s)
{
    free(s->prompt.id);
    free(s->made.id);
    free(s->text.p);
    *s = (struct completion){ 0 };
}
