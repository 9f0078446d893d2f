/* An index of shards: no file name that it lets pass leaves the directory. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/shardindex.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct shard_index x;
    struct err e;
    char *text = malloc(n ? n : 1);

    if (n)
        memcpy(text, data, n);
    if (!shard_index_parse(&x, text, n, ".safetensors", "'f'", &e)) {
        for (size_t i = 0; i < x.n_files; i++)
            if (strchr(x.file[i], '/') || x.file[i][0] == '.' ||
                (i && strcmp(x.file[i - 1], x.file[i]) >= 0))
                abort();
        shard_index_release(&x);
    }
    free(text);
    return 0;
}
