/* rate.h - how fast this machine computes: measured, not assumed. */
#ifndef FORGE_RATE_H
#define FORGE_RATE_H

/* Operations a second of all threads together, in products as the forward pass
 * and Hessians have them, measured for about `seconds`. */
double rate_products(double seconds);
/* The same of the solver's kernel: products in f32. */
double rate_vectors(double seconds);

#endif
