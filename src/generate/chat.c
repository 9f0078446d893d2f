/* chat.c - see chat.h. */
#include "generate/chat.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "common/io/modeldir.h"

enum { FILE_MAX = 4 << 20 };

/* A family's format.  In its strings %s is the system message, %u the user
 * message, %e the tokenizer's eos token. */
struct family {
    const char *name;
    const char *marks[3]; /* strings that the template must all contain */
    const char *without;  /* a string that it must not contain; NULL: none */
    /* What <|...|> may have within, besides parts[]: a template with another such token
     * is of a relative with another format. */
    const char *tokens[8];
    const char *system; /* format of the system message; NULL: not supported */
    const char *turn;   /* format of the user message, up to the answer;
                         * NULL: put_mistral() */
    const char *end;    /* token that ends an answer; NULL: eos */
    bool trims;         /* messages are stripped of blanks at both ends */
};

/* The first family that fits is used.  Sources: the templates published with
 * the models named here. */
static const struct family families[] = {
    /* Llama 3 */
    { "Llama 3",
      { "<|start_header_id|>", "<|eot_id|>" },
      NULL,
      { "start_header_id", "end_header_id", "eot_id", "eom_id", "begin_of_text",
        "python_tag" },
      "<|start_header_id|>system<|end_header_id|>\n\n%s<|eot_id|>",
      "<|start_header_id|>user<|end_header_id|>\n\n%u<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n",
      "<|eot_id|>",
      true },
    /* Qwen 2 to 3, Yi, SmolLM, and many fine-tuned models */
    { "ChatML",
      { "<|im_start|>", "<|im_end|>" },
      NULL,
      { "im_start", "im_end", "endoftext" },
      "<|im_start|>system\n%s<|im_end|>\n",
      "<|im_start|>user\n%u<|im_end|>\n<|im_start|>assistant\n",
      "<|im_end|>",
      false },
    /* DeepSeek V2.5, V3, R1 */
    { "DeepSeek",
      { "<｜User｜>", "<｜Assistant｜>" },
      NULL,
      { "User", "Assistant", "begin▁of▁sentence", "end▁of▁sentence" },
      "%s",
      "<｜User｜>%u<｜Assistant｜>",
      NULL,
      false },
    /* DeepSeek V2 */
    { "DeepSeek V2",
      { "User: ", "Assistant: ", "Assistant:" },
      "[INST]",
      { NULL },
      "%s\n\n",
      "User: %u\n\nAssistant:",
      NULL,
      false },
    /* GLM-4, 4.5 */
    { "GLM",
      { "[gMASK]<sop>", "<|user|>", "<|assistant|>" },
      NULL,
      { "user", "assistant", "system", "observation" },
      "<|system|>\n%s",
      "<|user|>\n%u<|assistant|>",
      "<|user|>",
      false },
    /* Llama 2 */
    { "Llama 2",
      { "[INST]", "<<SYS>>" },
      NULL,
      { NULL },
      NULL,
      "[INST] %u [/INST]",
      NULL,
      true },
    /* Mistral, Mixtral: blanks as in the template, see put_mistral() */
    { "Mistral",
      { "[INST]", "[/INST]" },
      "[SYSTEM_PROMPT]",
      { NULL },
      NULL,
      NULL,
      NULL,
      false },
    /* Phi-4 */
    { "Phi-4",
      { "'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'",
        "'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'",
        "'<|im_start|>assistant<|im_sep|>' }}" },
      NULL,
      { "im_start", "im_end", "im_sep" },
      "<|im_start|>system<|im_sep|>%s<|im_end|>",
      "<|im_start|>user<|im_sep|>%u<|im_end|>"
      "<|im_start|>assistant<|im_sep|>",
      "<|im_end|>",
      false },
    /* Phi-3 */
    { "Phi-3",
      { "'<|system|>\n' + message['content'] + '<|end|>\n'",
        "'<|user|>\n' + message['content'] + '<|end|>\n'",
        "'<|assistant|>\n' }}" },
      NULL,
      { "user", "assistant", "system", "end" },
      "<|system|>\n%s<|end|>\n",
      "<|user|>\n%u<|end|>\n<|assistant|>\n",
      "<|end|>",
      false },
    /* OLMo 2 */
    { "OLMo 2",
      { "'<|system|>\n' + message['content'] + '\n'",
        "'<|user|>\n' + message['content'] + '\n'", "'<|assistant|>\n' }}" },
      NULL,
      { "user", "assistant", "system" },
      "<|system|>\n%s\n",
      "<|user|>\n%u\n<|assistant|>\n",
      NULL,
      false },
    /* Zephyr, TinyLlama */
    { "Zephyr",
      { "<|user|>\n' + message['content'] + eos_token", "<|assistant|>" },
      NULL,
      { "user", "assistant", "system" },
      "<|system|>\n%s%e\n",
      "<|user|>\n%u%e\n<|assistant|>\n",
      NULL,
      false },
};

struct chat {
    const struct family *of; /* the template's family */
    char *text;              /* the template, with "\n" in its strings
                              * replaced by newlines */
    char *bos, *eos;
    bool begins;  /* a prompt begins with bos */
    char *system; /* the template's default system message; NULL: none */
};

static bool has(const struct chat *c, const char *mark)
{
    return strstr(c->text, mark);
}

/* ---- reading ---- */

/* Replace "\n" and "\\" in Jinja's strings by what they mean. */
static void unescape(char *s)
{
    char *to = s;

    for (; *s; s++)
        if (s[0] == '\\' && (s[1] == 'n' || s[1] == '\\')) {
            *to++ = *++s == 'n' ? '\n' : '\\';
        } else {
            *to++ = *s;
        }
    *to = 0;
}

static int copy(char **to, const char *s, struct err *e)
{
    *to = mem_text(s, strlen(s), "chat template", e);
    return *to ? 0 : e->code;
}

/* "bos_token": "<s>", or {"content": "<s>", ...}; null: none. */
static int read_token(char **to, const struct json *root, const char *key,
                      struct err *e)
{
    const struct json *v = json_get(root, key);
    const char *s;

    if (!json_string(v, &s) && !json_string(json_get(v, "content"), &s))
        return 0;
    return copy(to, s, e);
}

/* The template: a string, or of a list the one named "default". */
static int read_template(struct chat *c, const struct json *v, struct err *e)
{
    const char *s, *name;

    if (json_string(v, &s))
        return copy(&c->text, s, e);
    for (const struct json *i = json_first(v); i && !c->text; i = json_after(i))
        if (json_string(json_get(i, "name"), &name) &&
            !strcmp(name, "default") &&
            json_string(json_get(i, "template"), &s))
            return copy(&c->text, s, e);
    return 0;
}

static int read_config(struct chat *c, const struct modeldir *d, struct err *e)
{
    struct json_doc *doc;
    char *text;
    size_t len;
    int rc;

    if (!modeldir_has(d, "tokenizer_config.json"))
        return 0;
    if (modeldir_slurp(d, "tokenizer_config.json", FILE_MAX, &text, &len, e) <
        0)
        return e->code;
    rc = json_parse(&doc, text, len, "'tokenizer_config.json'", e);
    free(text);
    if (rc < 0)
        return rc;
    rc = read_token(&c->bos, json_root(doc), "bos_token", e);
    if (!rc)
        rc = read_token(&c->eos, json_root(doc), "eos_token", e);
    if (!rc && !c->text)
        rc = read_template(c, json_get(json_root(doc), "chat_template"), e);
    json_free(doc);
    return rc;
}

static int read_files(struct chat *c, const char *model, struct err *e)
{
    struct modeldir d;
    size_t len;
    int rc = 0;

    if (modeldir_open(&d, model, e) < 0)
        return e->code;
    if (modeldir_has(&d, "chat_template.jinja"))
        rc = modeldir_slurp(&d, "chat_template.jinja", FILE_MAX, &c->text, &len,
                            e);
    if (!rc)
        rc = read_config(c, &d, e);
    modeldir_close(&d);
    return rc;
}

/* ---- which family ---- */

/* Whether the token <|name|> is of the family, or of a tool or a picture, which a text
 * has not. */
static bool knows(const struct family *f, const char *name, size_t n)
{
    static const char *const parts[] = { "tool", "vision", "image", "video",
                                         "audio" };

    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (memmem(name, n, parts[i], strlen(parts[i])))
            return true;
    for (size_t i = 0; i < ARRAY_LEN(f->tokens) && f->tokens[i]; i++)
        if (strlen(f->tokens[i]) == n && !memcmp(f->tokens[i], name, n))
            return true;
    return false;
}

/* Whether all tokens in the template's text between these marks are known. */
static bool knows_all(const struct chat *c, const struct family *f,
                      const char *begin, const char *end)
{
    const char *p = c->text, *behind;

    while ((p = strstr(p, begin))) {
        p += strlen(begin);
        behind = strstr(p, end);
        if (behind && strcspn(p, " '\"\n") > (size_t)(behind - p) &&
            !knows(f, p, (size_t)(behind - p)))
            return false;
    }
    return true;
}

static bool is_of(const struct chat *c, const struct family *f)
{
    for (size_t i = 0; i < ARRAY_LEN(f->marks); i++)
        if (f->marks[i] && !has(c, f->marks[i]))
            return false;
    return (!f->without || !has(c, f->without)) &&
           knows_all(c, f, "<|", "|>") && knows_all(c, f, "<｜", "｜>");
}

/* Default system message of a ChatML template: the text between the marks, which must be
 * literal.  E_CONFIG: it is not. */
static int own_system(struct chat *c, const char *model, struct err *e)
{
    static const char begin[] = "<|im_start|>system\n";

    for (const char *p = c->text; (p = strstr(p, begin)); p++) {
        const char *from = p + sizeof(begin) - 1;
        const char *end = strstr(from, "<|im_end|>");
        size_t n = end ? (size_t)(end - from) : 0;

        if (!n || strcspn(from, "'\"{") == 0)
            continue; /* that of the messages */
        if (strcspn(from, "'\"") < n || memmem(from, n, "{{", 2) ||
            memmem(from, n, "{%", 2))
            return err_set(e, E_CONFIG,
                           "'%.200s': the default system message of its chat "
                           "template is no literal text; --raw goes on with "
                           "the text as it is",
                           model);
        c->system = mem_text(from, n, "chat template", e);
        return c->system ? 0 : e->code;
    }
    return 0;
}

static int find_family(struct chat *c, const char *model, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(families) && !c->of; i++)
        if (is_of(c, &families[i]))
            c->of = &families[i];
    if (!c->of)
        return err_set(e, E_CONFIG,
                       "'%.200s': its chat template is of no family that is "
                       "known (Llama 2, 3, ChatML, DeepSeek, GLM, Mistral, "
                       "Phi-3, Phi-4, OLMo 2, Zephyr); --raw goes on with the "
                       "text as it is",
                       model);
    c->begins = c->bos && has(c, "bos_token");
    return !strcmp(c->of->name, "ChatML") ? own_system(c, model, e) : 0;
}

int chat_open(struct chat **out, const char *model, struct err *e)
{
    struct chat *c = mem_zero(1, sizeof(*c), "chat template", e);
    int rc = c ? read_files(c, model, e) : e->code;

    *out = NULL;
    if (!rc && c->text) {
        unescape(c->text);
        rc = find_family(c, model, e);
    }
    if (rc < 0 || !c->text) {
        chat_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

void chat_close(struct chat *c)
{
    if (!c)
        return;
    free(c->text);
    free(c->bos);
    free(c->eos);
    free(c->system);
    free(c);
}

const char *chat_end(const struct chat *c)
{
    return c->of->end;
}

/* ---- writing ---- */

struct words {
    const char *p;
    size_t n;
};

static struct words trimmed(const struct chat *c, const char *p, size_t n)
{
    static const char blanks[] = " \t\n\r\f\v";

    while (c->of->trims && n && memchr(blanks, *p, sizeof(blanks) - 1))
        p++, n--;
    while (c->of->trims && n && memchr(blanks, p[n - 1], sizeof(blanks) - 1))
        n--;
    return (struct words){ p, n };
}

static int add(struct text *out, const char *s, struct err *e)
{
    return text_add(out, s, strlen(s), e);
}

static int put(const struct chat *c, const char *form, struct words w,
               struct text *out, struct err *e)
{
    int rc = 0;

    for (const char *p = form; *p && !rc; p++)
        if (*p != '%')
            rc = text_add(out, p, 1, e);
        else if (*++p == 'e')
            rc = c->eos ? add(out, c->eos, e) : 0;
        else
            rc = text_add(out, w.p, w.n, e);
    return rc;
}

/* Llama 3.1 and later put dates before the system message.  For "today" the
 * template's fallback date is used, so that equal prompts give equal text on
 * every day. */
static int put_dates(const struct chat *c, struct words s, struct text *out,
                     struct err *e)
{
    static const char dates[] = "Cutting Knowledge Date: December 2023\n"
                                "Today Date: 26 Jul 2024\n\n";
    struct text t = { 0 };
    int rc = add(&t, dates, e);

    if (!rc)
        rc = text_add(&t, s.p, s.n, e);
    if (!rc)
        rc = put(c, c->of->system, (struct words){ t.p, t.len }, out, e);
    free(t.p);
    return rc;
}

static int put_system(const struct chat *c, const char *system,
                      struct text *out, struct err *e)
{
    const char *s = system ? system : c->system ? c->system : "";
    struct words w = trimmed(c, s, strlen(s));

    if (has(c, "Cutting Knowledge Date") && c->of->system && c->of->trims)
        return put_dates(c, w, out, e);
    if (!system && !c->system)
        return 0;
    if (!c->of->system)
        return err_set(e, E_CONFIG,
                       "a system's words in a template of %s are not "
                       "supported",
                       c->of->name);
    return put(c, c->of->system, w, out, e);
}

/* [INST] and [/INST], with blanks where the template's strings have them. */
static int put_mistral(const struct chat *c, struct words u, struct text *out,
                       struct err *e)
{
    bool before = has(c, "[INST] '") || has(c, "[INST] \"");
    bool after = has(c, "' [/INST]") || has(c, "\" [/INST]");

    if (put(c, before ? "[INST] %u" : "[INST]%u", u, out, e) < 0)
        return e->code;
    return add(out, after ? " [/INST]" : "[/INST]", e);
}

/* Templates of reasoning models begin the answer with <think>. */
static int put_thinking(const struct chat *c, struct text *out, struct err *e)
{
    static const char *const begins[][2] = {
        { "<|im_start|>assistant\n<think>\n'", "<think>\n" },
        { "<|im_start|>assistant\n<think>\n\"", "<think>\n" },
        { "<|im_start|>assistant\n<think>'", "<think>" },
        { "<|im_start|>assistant\n<think>\"", "<think>" },
        { "<｜Assistant｜><think>\n", "<think>\n" },
    };

    for (size_t i = 0; i < ARRAY_LEN(begins); i++)
        if (has(c, begins[i][0]))
            return add(out, begins[i][1], e);
    /* DeepSeek V3.1 reasons only if the template's caller asks for it */
    if (!strcmp(c->of->name, "DeepSeek") && has(c, "not thinking") &&
        has(c, "</think>"))
        return add(out, "</think>", e);
    return 0;
}

int chat_prompt(const struct chat *c, const char *system, const char *user,
                size_t len, struct text *out, struct err *e)
{
    struct words u = trimmed(c, user, len);
    bool glm = !strcmp(c->of->name, "GLM");
    int rc = c->begins ? add(out, c->bos, e) : 0;

    if (!rc && glm)
        rc = add(out, "[gMASK]<sop>", e);
    if (!rc)
        rc = put_system(c, system, out, e);
    if (!rc)
        rc = c->of->turn ? put(c, c->of->turn, u, out, e) :
                           put_mistral(c, u, out, e);
    return rc ? rc : put_thinking(c, out, e);
}
