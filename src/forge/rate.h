/* rate.h - measures how fast this machine computes. */
#ifndef FORGE_RATE_H
#define FORGE_RATE_H

/* Operations per second of all threads together in bf16 products, as in the
 * forward pass and Hessians; measures for about `seconds`. */
double rate_products(double seconds);
/* The same for the solver's products (at level amx those of split.h). */
double rate_vectors(double seconds);

#endif
