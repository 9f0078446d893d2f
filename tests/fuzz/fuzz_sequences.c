/* Any bytes as an input of forge-tokens in any format: sequences, or no. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "tokens/sequences.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct sequences s;
    struct err e;

    for (int format = FORMAT_AUTO; format <= FORMAT_NPY; format++)
        for (int whole = 0; whole < 2; whole++) {
            struct sequences_params p = {
                .format = format,
                .whole = whole,
                .n = 4,
                .seqlen = 8,
                .vocab_size = 1000,
                .model = "tests/fuzz/corpus/tokenizer/bytes",
            };
            struct input in;
            int fd[2];

            if (n > 32768 || pipe(fd) < 0)
                return 0;
            if (write(fd[1], data, n) != (ssize_t)n)
                abort();
            close(fd[1]);
            in = (struct input){ .fd = fd[0], .name = "f" };
            if (!sequences_read(&s, &p, &in, &e))
                for (size_t i = 0, at = 0; i < s.count; at = s.end[i++])
                    if (s.end[i] < at || s.end[i] > s.ids.count ||
                        (!whole && s.end[i] - at > 8))
                        abort();
            sequences_release(&s);
            input_close(&in);
        }
    return 0;
}
