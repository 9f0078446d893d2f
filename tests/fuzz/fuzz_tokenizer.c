/* Any bytes as tokenizer.json: refused, or a tokenizer that gives the same
 * ids for a text twice, whatever its cache has seen in between. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = "ab <s>a  b\n\naba\xc3\xa9 e\xcc\x81 12 it's "
                               "\xe4\xb8\xad\xe6\x96\x87\xf0\x9f\x98\x80 </s>";
    struct token_ids once = { 0 }, twice = { 0 };
    struct tokenizer *t;
    struct err e;

    if (tokenizer_parse(&t, (const char *)data, n, "'f'", &e) < 0)
        return 0;
    if (!tokenizer_encode(t, text, sizeof(text), &once, &e)) {
        if (tokenizer_encode(t, text, sizeof(text), &twice, &e) < 0 ||
            once.count != twice.count ||
            (once.count &&
             memcmp(once.id, twice.id, once.count * sizeof(*once.id))))
            abort();
    }
    free(once.id);
    free(twice.id);
    tokenizer_close(t);
    return 0;
}
