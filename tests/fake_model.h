/* fake_model.h - what the fake plug-in's forward pass has of the model. */
#ifndef FORGE_FAKE_MODEL_H
#define FORGE_FAKE_MODEL_H

#include "fake_cuda.h"
#include "model/internal.h"

static inline struct model host_model(enum dtype t)
{
    static const struct family plain;

    return (struct model){ .config = { .family = &plain },
                           .dtype = t,
                           .bf16 = t == DT_BF16,
                           .size = t == DT_BF16 ? 2 : 4,
                           .k = kernels_best() };
}

static inline size_t bytes_of(enum dtype t, int64_t rows, int64_t n)
{
    return (size_t)(rows * n) * (t == DT_BF16 ? 2 : 4);
}

#endif
