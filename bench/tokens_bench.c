/* tokens_bench - MB/s of the tokenizer on one thread.
 *
 *     tokens_bench [TOKENIZER.json TEXT [MB [PIECE]]]
 *
 * Without arguments: the example model and text.
 * The text is encoded in pieces of PIECE bytes (100,000; 0: in one call), as
 * bench/tokens_peer.py does with the tokenizers package; both print the number
 * of ids and their sum, which must agree.  "first" is the first pass, with an
 * empty cache; "best" the best of three more.
 *
 * Tried, and gone: Oniguruma for the known patterns, a third of the speed.
 * Measured on one thread of an EPYC, 10 MB of books: 60 to 77 MB/s for the
 * byte-level kinds and 50 for the Llama 2 kind, where the package does 1.5
 * and 3.3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/io/file.h"
#include "tokenizer/tokenizer.h"

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Up to n bytes from at on, whole characters. */
static size_t piece_length(const char *text, size_t len, size_t at, size_t n)
{
    if (!n || n >= len - at)
        return len - at;
    while (((unsigned char)text[at + n] & 0xc0) == 0x80)
        n--;
    return n;
}

static double pass(struct tokenizer *t, const char *text, size_t len,
                   size_t piece, struct token_ids *ids)
{
    double start = now();
    struct err e;

    ids->count = 0;
    for (size_t at = 0; at < len;) {
        size_t n = piece_length(text, len, at, piece);

        if (tokenizer_encode(t, text + at, n, ids, &e) < 0)
            die_err(&e);
        at += n;
    }
    return now() - start;
}

int main(int argc, char **argv)
{
    struct token_ids ids = { 0 };
    struct tokenizer *t;
    const char *model = argc > 1 ? argv[1] : "examples/llama-4m/tokenizer.json";
    const char *path = argc > 2 ? argv[2] : "examples/calib.jsonl";
    double first, best = 1e30, opened;
    uint64_t sum = 0;
    size_t len, piece;
    char *text;
    struct err e;

    base_init(argv[0]);
    piece = argc > 4 ? strtoull(argv[4], NULL, 10) : 100000;
    opened = now();
    if (tokenizer_open(&t, model, &e) < 0)
        die_err(&e);
    opened = now() - opened;
    if (file_slurp(&text, &len, path, (size_t)1 << 32, &e) < 0)
        die_err(&e);
    if (argc > 3)
        len = piece_length(text, len, 0, (size_t)(atof(argv[3]) * 1e6));
    first = pass(t, text, len, piece, &ids);
    for (int i = 0; i < 3; i++) {
        double s = pass(t, text, len, piece, &ids);

        best = s < best ? s : best;
    }
    for (size_t i = 0; i < ids.count; i++)
        sum += (uint64_t)ids.id[i];
    printf("tokens: %s: %.1f MB, %zu ids, sum %llu, open %.0f ms, "
           "first %.1f MB/s, best %.1f MB/s\n",
           model, (double)len / 1e6, ids.count, (unsigned long long)sum,
           opened * 1e3, (double)len / 1e6 / first, (double)len / 1e6 / best);
    free(ids.id);
    free(text);
    tokenizer_close(t);
    return 0;
}
