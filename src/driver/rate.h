/* rate.h - how fast this machine computes: measured, not assumed. */
#ifndef FORGE_RATE_H
#define FORGE_RATE_H

/* Operations a second of all threads together, in products as the forward pass
 * and Hessians have them, measured for about `seconds`. */
double rate_products(double seconds);
/* The same of sums of f32 products in registers, as the solver has them. */
double rate_vectors(double seconds);

#endif
