/* forge-generate - text from a checkpoint, original or 4-bit.
 *
 * Prompts in, text out as it comes.  See forge-generate(1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cli/tool.h"
#include "device/device.h"
#include "generate/completion.h"
#include "generate/own.h"
#include "generate/printing.h"
#include "tokenizer/tokenizer.h"

enum { DTYPE_BF16, DTYPE_F32 };

struct settings {
    struct tool tool;
    struct device_choice device;
    int greedy, raw, lines, json, dtype;
    int64_t tokens, top_k, seed; /* top_k and seed: -1 not given */
    double temperature, top_p;   /* 0: not given */
    int64_t sequences;           /* 0: prompts */
    const char *system, *model, *prompt;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_INT, 'n', "tokens", "N",
          "generate at most N tokens for each prompt [128]", &s->tokens, 1,
          1 << 30, false },
        { OPT_FLAG, 0, "greedy", NULL, "take the most probable token each time",
          &s->greedy, 0, 0, false },
        { OPT_FLOAT, 0, "temperature", "X",
          "sample, logits divided by X [the model's, or 1]", &s->temperature,
          1e-3, 1e3, false },
        { OPT_FLOAT, 0, "top-p", "P",
          "sample from the most probable tokens that sum to P [the model's, or "
          "1]",
          &s->top_p, 1e-6, 1, false },
        { OPT_INT, 0, "top-k", "N",
          "sample from the N most probable tokens, 0 = all [the model's, or "
          "50]",
          &s->top_k, 0, 1 << 30, false },
        { OPT_INT, 0, "seed", "N", "seed of the sampling [0]", &s->seed, 0,
          9e15, false },
        { OPT_FLAG, 0, "raw", NULL,
          "continue the text as it is: no chat template", &s->raw, 0, 0,
          false },
        { OPT_STR, 0, "system", "TEXT",
          "system message of the chat template [the template's]", &s->system, 0,
          0, false },
        { OPT_FLAG, 0, "lines", NULL, "each line of the input is a prompt",
          &s->lines, 0, 0, false },
        { OPT_FLAG, 0, "json", NULL, "a line of JSON for each prompt", &s->json,
          0, 0, true },
        { OPT_INT, 0, "sequences", "N",
          "write N sequences of --tokens tokens, as forge-tokens does",
          &s->sequences, 1, 1 << 30, false },
        { OPT_OUTPUT, 'o', "output", "FILE", "... to FILE [standard output]",
          &s->tool.output, 0, 0, true },
        { OPT_STR, 0, "key", "KEY", "... with this settings key in the HEAD",
          &s->tool.key, 0, 0, true },
        { OPT_CHOICE, 0, "dtype", "bf16|f32", "type to compute in [bf16]",
          &s->dtype, 0, 0, false },
        DEVICE_OPTIONS(&s->device),
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i;

    opt_for_stream = "--sequences"; /* else it is text */
    i = opt_parse(argc, argv, "[option...] MODEL [PROMPT]",
                  "Continue a text with a checkpoint, or answer it.", table);
    if (argc - i < 1 || argc - i > 2)
        die(E_USAGE, "want MODEL and at most one PROMPT (try --help)");
    s->model = argv[i];
    s->prompt = argv[i + 1];
    tool_apply(&s->tool);
    if (s->greedy &&
        (s->temperature > 0 || s->top_p > 0 || s->top_k >= 0 || s->seed >= 0))
        die(E_USAGE, "--greedy draws nothing: --temperature, --top-p, --top-k "
                     "and --seed are for sampling");
    if (!s->sequences && (s->tool.output || s->tool.key))
        die(E_USAGE, "--output and --key are for --sequences");
    if (s->sequences &&
        (s->greedy || s->temperature > 0 || s->top_p > 0 || s->top_k >= 0 ||
         s->system || s->lines || s->json || s->raw || s->prompt))
        die(E_USAGE,
            "--sequences takes --tokens, --seed and --dtype alone, and "
            "no PROMPT");
    if (s->raw && s->system)
        die(E_USAGE, "--system is for chat templates, --raw for none");
    if (s->lines && s->prompt)
        die(E_USAGE, "--lines is for prompts from the input");
}

/* The model's own settings, unless options override them. */
static void set_sampler(const struct settings *s, struct completer *p)
{
    bool given =
        s->temperature > 0 || s->top_p > 0 || s->top_k >= 0 || s->seed >= 0;
    const struct generate_settings *m = &p->settings;

    p->sampler = (struct sampler){
        .greedy = s->greedy || (!given && !m->sample),
        .temperature = s->temperature > 0 ? s->temperature : m->temperature,
        .top_p = s->top_p > 0 ? s->top_p : m->top_p,
        .top_k = s->top_k >= 0 ? s->top_k : m->top_k,
        .seed = s->seed >= 0 ? (uint64_t)s->seed : 0,
    };
}

/* Everything that can be refused is checked before the weights are read. */
static int open_completer(struct completer *p, const struct settings *s,
                          struct err *e)
{
    *p = (struct completer){ .system = s->system, .tokens = s->tokens };
    if (generate_settings_read(&p->settings, s->model, e) < 0 ||
        (!s->raw && chat_open(&p->chat, s->model, e) < 0) ||
        tokenizer_open(&p->tokenizer, s->model, e) < 0 ||
        decoder_open(&p->decoder, s->model, false, e) < 0)
        return e->code;
    if (s->system && !p->chat)
        return err_set(e, E_CONFIG, "'%s' has no chat template: no --system",
                       s->model);
    if (p->chat && chat_end(p->chat))
        generate_settings_stop(&p->settings,
                               decoder_id(p->decoder, chat_end(p->chat)));
    set_sampler(s, p);
    if (device_open(&s->device, &forward_plugin, e) < 0)
        return e->code;
    return generator_open(&p->generator, s->model, tool_temporary_dir(&s->tool),
                          s->dtype == DTYPE_F32 ? DT_F32 : DT_BF16,
                          s->tool.progress, e);
}

static void close_completer(struct completer *p)
{
    generator_close(p->generator);
    tokenizer_close(p->tokenizer);
    decoder_close(p->decoder);
    chat_close(p->chat);
    sampler_release(&p->sampler);
}

/* ---- prompts ---- */

static int answer(struct completer *p, const struct settings *s,
                  const char *prompt, size_t len, struct err *e)
{
    struct completion t;
    int rc = complete(p, prompt, len, s->json ? NULL : completion_print, NULL,
                      &t, e);

    if (!rc && s->json)
        rc = completion_json(&t, e);
    if (!rc)
        rc = completion_print(NULL, "\n", 1, e);
    if (!rc && s->tool.progress != PROGRESS_JSON)
        completion_rates(&t);
    completion_release(&t);
    return rc;
}

/* ---- input ---- */

/* Prompts from the input: one per line, or all of it as one, without the newline that
 * echo(1) and editors put behind it. */
static int answer_input(struct completer *p, const struct settings *s,
                        struct err *e)
{
    char *text = NULL;
    size_t cap = 0, line = 0;
    ssize_t n;
    int rc = 0;

    while (!rc &&
           (n = getdelim(&text, &cap, s->lines ? '\n' : EOF, stdin)) > 0) {
        line++;
        if (text[n - 1] == '\n')
            n--;
        if (n && (rc = answer(p, s, text, (size_t)n, e)) < 0 && s->lines &&
            !e->told)
            err_prefix(e, "line %zu", line);
    }
    if (!rc && ferror(stdin))
        rc = err_set(e, E_IO, "cannot read '<stdin>':");
    free(text);
    return rc;
}

/* ---- sequences ---- */

static void write_sequences(const struct settings *s)
{
    const struct stream_output to = { .path = s->tool.output,
                                      .key = s->tool.key };
    struct generate_settings settings;
    struct progress progress = { 0 };
    struct own o = { .settings = &settings,
                     .progress = &progress,
                     .count = s->sequences,
                     .tokens = s->tokens,
                     .seed = s->seed >= 0 ? (uint64_t)s->seed : 0 };
    struct stream_writer *out;
    struct err e;

    if (stream_create(&out, &to, &e) < 0)
        die_err(&e);
    if (generate_settings_read(&settings, s->model, &e) < 0 ||
        device_open(&s->device, &forward_plugin, &e) < 0 ||
        generator_open(&o.g, s->model, tool_temporary_dir(&s->tool),
                       s->dtype == DTYPE_F32 ? DT_F32 : DT_BF16, PROGRESS_NEVER,
                       &e) < 0)
        tool_fail(out, &e);
    progress_start(&progress, s->tool.progress, "sequences",
                   (uint64_t)s->sequences);
    if (own_write(&o, out, &e) < 0)
        tool_fail(out, &e);
    tool_finish(out, &progress, NULL);
    generator_close(o.g);
}

int main(int argc, char **argv)
{
    struct settings s = { .tokens = 128, .top_k = -1, .seed = -1 };
    struct completer p;
    struct err e;
    int rc;

    parse(&s, argc, argv);
    if (s.sequences) {
        write_sequences(&s);
        return 0;
    }
    if (open_completer(&p, &s, &e) < 0)
        die_err(&e);
    rc = s.prompt ? answer(&p, &s, s.prompt, strlen(s.prompt), &e) :
                    answer_input(&p, &s, &e);
    if (rc < 0)
        die_err(&e);
    close_completer(&p);
    return 0;
}
