/* Any bytes as data.pkl: the machine builds tensors or says no. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int each(void *arg, const struct pickle_tensor *t, struct err *e)
{
    (void)arg, (void)e;
    if (t->ndim < 0 || t->ndim > CHECKPOINT_MAX_DIMS || !t->name || !t->key ||
        !dtype_bits(t->dtype))
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    struct err e = { 0 };
    int r;

    if (n)
        memcpy(copy, data, n);
    r = pickle_run(copy, n, "'f'", each, NULL, &e);
    if (r && r != e.code)
        abort();
    free(copy);
    return 0;
}
