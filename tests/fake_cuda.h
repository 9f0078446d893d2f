/* fake_cuda.h - what the files of the fake plug-in share. */
#ifndef FORGE_FAKE_CUDA_H
#define FORGE_FAKE_CUDA_H

#include <stdint.h>

struct cuda_context {
    uint64_t memory; /* that may be held; 0: any */
};

/* A line to FAKE_CUDA_LOG. */
void fake_note(const char *what, int n, uint64_t rows, uint64_t cols);

#endif
