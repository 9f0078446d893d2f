/* forge-tokens - text, JSON lines or ids to calibration sequences.
 *
 * Sequences are cut from one stream of ids, so that two programs given the same
 * text and tokenizer calibrate on the same tokens.  See forge-tokens(1). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cli/tool.h"
#include "common/io/json.h"
#include "common/io/modeldir.h"
#include "tokens/sequences.h"

enum { SEQUENCES = 128, SEQLEN = 512, CONFIG_MAX = 16 << 20 };

struct settings {
    struct tool tool;
    int64_t sequences, seqlen, skip_chars; /* 0: not given */
    int ids, format;
    const char *model, *input;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_INT, 'n', "sequences", "N", "sequences to cut [128]",
          &s->sequences, 1, 1 << 30, false },
        { OPT_INT, 't', "seqlen", "N",
          "ids in a sequence, special tokens included [512]", &s->seqlen, 1,
          1 << 30, false },
        { OPT_INT, 0, "skip-chars", "N", "leave out the first N characters [0]",
          &s->skip_chars, 0, 9e15, false },
        { OPT_CHOICE, 0, "format", FORMAT_WORDS,
          "format of the input [auto: by name and content]", &s->format, 0, 0,
          false },
        { OPT_FLAG, 0, "ids", NULL,
          "print decimal ids; without -n, -t uncut, a line for each text, "
          "record or row",
          &s->ids, 0, 0, false },
        { OPT_OUTPUT, 'o', "output", "FILE",
          "write the stream to FILE [standard output]", &s->tool.output, 0, 0,
          true },
        { OPT_STR, 0, "key", "KEY", "settings key to store in the HEAD",
          &s->tool.key, 0, 0, true },
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] MODEL [FILE]",
                      "Turn text into sequences of token ids for calibration.",
                      table);

    if (argc - i < 1 || argc - i > 2)
        die(E_USAGE, "want MODEL and at most one FILE (try --help)");
    s->model = argv[i];
    s->input = argv[i + 1];
    tool_apply(&s->tool);
    if (s->ids)
        die_tells = NULL; /* text is asked for */
    if (s->ids && s->tool.key)
        die(E_USAGE, "--key is for streams, and --ids prints text");
}

/* vocab_size in MODEL/config.json; 0 when there is no such file. */
static int64_t vocab_size(const char *model)
{
    const struct json *root, *v;
    struct json_doc *doc;
    char *text, what[300];
    struct stat st;
    struct err e;
    size_t len;
    int64_t n = 0;

    if (stat(model, &st) < 0)
        die(E_NOINPUT, "'%s': no such model", model);
    if (!S_ISDIR(st.st_mode))
        return 0;
    snprintf(what, sizeof(what), "'%.260s/config.json'", model);
    if (modeldir_read(model, "config.json", CONFIG_MAX, &text, &len, &e) < 0) {
        if (e.code == E_NOINPUT)
            return 0;
        die_err(&e);
    }
    if (json_parse(&doc, text, len, what, &e) < 0)
        die_err(&e);
    free(text);
    root = json_root(doc);
    v = json_get(root, "vocab_size");
    if (!v)
        v = json_get(json_get(root, "text_config"), "vocab_size");
    if (v && (!json_int(v, &n) || n < 1))
        die(E_DATA, "%s: vocab_size is no positive number", what);
    json_free(doc);
    return n;
}

static void warn(const struct settings *s, const struct sequences_params *p,
                 const struct sequences *q)
{
    if (p->whole)
        return;
    if (q->count < (size_t)p->n)
        warning("'%s': %zu sequences, %lld were asked for",
                s->input ? s->input : "<stdin>", q->count, (long long)p->n);
    if (q->cut)
        warning("%zu sequences were longer than %lld ids and are cut", q->cut,
                (long long)p->seqlen);
}

/* ---- output ---- */

/* The output stream; NULL when ids are printed as text.  It is opened before
 * the input is read, so that an error reaches the next tool of a pipe. */
static struct stream_writer *open_stream(const struct settings *s)
{
    struct stream_writer *w;
    struct err e;
    struct stream_output out = { s->tool.output, s->tool.key, NULL };

    if (s->ids)
        return NULL;
    if (stream_create(&w, &out, &e) < 0)
        die_err(&e);
    return w;
}

/* Add to HEAD what the checkpoint's card will say of the text: its digest,
 * numbers of sequences and ids. */
static int add_facts(struct stream_writer *w, const struct input *in,
                     const struct sequences *q, struct err *e)
{
    char hex[SHA256_HEX + 1], facts[160];

    sha256_hex(in->digest, hex);
    snprintf(facts, sizeof(facts),
             "\"text\":{\"sha256\":\"%s\",\"sequences\":%zu,\"ids\":%zu}", hex,
             q->count, q->ids.count);
    return stream_facts(w, facts, e);
}

static void write_stream(const struct settings *s, const struct sequences *q,
                         struct stream_writer *w)
{
    struct progress progress = { 0 };
    struct err e;
    char extra[64];

    progress_start(&progress, s->tool.progress, "sequences", q->count);
    for (size_t i = 0, start = 0; i < q->count; start = q->end[i++]) {
        struct frame f = { .role = ROLE_TOKENS,
                           .dtype = DT_I32,
                           .ndim = 1,
                           .dims = { q->end[i] - start },
                           .sequence = i + 1,
                           .data = q->ids.id + start,
                           .len = (q->end[i] - start) * sizeof(int32_t) };

        snprintf(f.name, sizeof(f.name), "%zu", i);
        if (stream_write(w, &f, &e) < 0)
            tool_fail(w, &e);
        progress_step(&progress, NULL, f.len);
    }
    snprintf(extra, sizeof(extra), "%zu ids from %s", q->ids.count, q->format);
    tool_finish(w, &progress, extra);
}

static size_t print_id(char *to, int32_t id, char after)
{
    char digit[12];
    size_t n = 0, k = 0;

    do
        digit[n++] = (char)('0' + id % 10);
    while (id /= 10);
    while (n)
        to[k++] = digit[--n];
    to[k++] = after;
    return k;
}

static void write_ids(const struct settings *s, const struct sequences *q)
{
    struct err e;
    size_t n = 0;
    char *text = mem_alloc(12 * q->ids.count + q->count, "ids", &e);

    if (!text)
        die_err(&e);
    for (size_t i = 0, at = 0; i < q->count; i++) {
        if (at == q->end[i])
            text[n++] = '\n';
        for (; at < q->end[i]; at++)
            n += print_id(text + n, q->ids.id[at],
                          at + 1 == q->end[i] ? '\n' : ' ');
    }
    if (s->tool.output && strcmp(s->tool.output, "-")) {
        if (publish_text(s->tool.output, text, n, &e) < 0)
            die_err(&e);
    } else {
        signal(SIGPIPE, SIG_DFL); /* `forge-tokens --ids | head` ends quietly */
        fwrite(text, 1, n, stdout);
        if (flush_stdout(&e) < 0)
            die_err(&e);
    }
    free(text);
}

int main(int argc, char **argv)
{
    struct settings s = { 0 };
    struct sequences q;
    struct input in;
    struct stream_writer *w;
    struct err e;

    base_init(argv[0]);
    parse(&s, argc, argv);

    const struct sequences_params p = {
        .format = s.format,
        .whole = s.ids && !s.sequences && !s.seqlen,
        .n = s.sequences ? s.sequences : SEQUENCES,
        .seqlen = s.seqlen ? s.seqlen : SEQLEN,
        .skip_chars = s.skip_chars,
        .vocab_size = vocab_size(s.model),
        .model = s.model,
    };

    w = open_stream(&s);
    if (input_open(&in, s.input, &e) < 0 ||
        (w && sha256_open(&in.digest, &e) < 0) ||
        sequences_read(&q, &p, &in, &e) < 0)
        tool_fail(w, &e);
    input_drain(&in);
    if (w && add_facts(w, &in, &q, &e) < 0)
        tool_fail(w, &e);
    input_close(&in);
    warn(&s, &p, &q);
    if (s.ids)
        write_ids(&s, &q);
    else
        write_stream(&s, &q, w);
    sequences_release(&q);
    return 0;
}
