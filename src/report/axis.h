/* axis.h - the axes of charts: round steps, and places along them. */
#ifndef FORGE_AXIS_H
#define FORGE_AXIS_H

#include "common/base.h"

/* Ticks at low, low + step, ..., high.  log: these are decimal logarithms; step 0: at
 * 1, 2 and 5 times powers of ten. */
struct axis {
    double low, high, step;
    bool log;
};

/* An axis of four to eight round steps that covers low..high. */
struct axis axis_round(double low, double high);
/* Ticks at whole powers of ten that cover low..high, both > 0. */
struct axis axis_log(double low, double high);
/* The same, but where these are too few, at 1, 2 and 5 times powers of ten. */
struct axis axis_log_fine(double low, double high);
/* The place of v along the axis, in percent from its low end; on a logarithmic
 * axis v > 0. */
double axis_at(const struct axis *a, double v);
/* Tick i, or false where the axis has ended. */
bool axis_tick(const struct axis *a, size_t i, double *v);

#endif
