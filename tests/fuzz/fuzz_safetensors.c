/* A safetensors header: a line with the bytes of data after it, then the
 * JSON.  What is accepted must add up to exactly those bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *nl = n ? memchr(data, '\n', n) : NULL;
    size_t len = nl ? n - (size_t)(nl + 1 - data) : 0;
    struct ck_list l = { 0 };
    uint64_t size, sum = 0;
    char number[24] = "", *text;
    struct err e;

    if (!nl || nl - data > 20)
        return 0;
    memcpy(number, data, (size_t)(nl - data));
    size = strtoull(number, NULL, 10) >> 1;
    text = malloc(len + 1);
    memcpy(text, nl + 1, len);
    text[len] = '\0';
    if (!safetensors_parse(&l, text, len, 8 + len + size, "'f'", &e)) {
        for (size_t i = 0; i < l.count; i++) {
            if (l.item[i].offset != 8 + len + sum)
                abort();
            sum += l.item[i].bytes;
        }
        if (sum != size)
            abort();
    }
    ck_list_release(&l);
    free(text);
    return 0;
}
