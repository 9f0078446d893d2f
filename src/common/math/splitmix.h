/* splitmix.h - SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
 * generators, 2014), on the CPU and on a GPU. */
#ifndef FORGE_SPLITMIX_H
#define FORGE_SPLITMIX_H

#include <stdint.h>

#ifdef __CUDACC__
#define SPLITMIX static __device__ __forceinline__
#else
#define SPLITMIX static inline
#endif

/* From one state to the next: add it. */
#define SPLITMIX_STEP 0x9e3779b97f4a7c15u

/* The number of a state. */
SPLITMIX uint64_t splitmix64(uint64_t state)
{
    uint64_t z = state;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The i-th number, from state 0. */
SPLITMIX uint64_t splitmix64_at(uint64_t i)
{
    return splitmix64((i + 1) * SPLITMIX_STEP);
}

#endif
