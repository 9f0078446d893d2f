/* axis.c - see axis.h. */
#include "report/axis.h"

#include <math.h>

struct axis axis_round(double low, double high)
{
    static const double nice[] = { 1, 2, 2.5, 5, 10 };
    double span, p, step = 0;

    high = high > low ? high : low + 1;
    span = high - low;
    p = pow(10, floor(log10(span / 5)));
    for (size_t i = 0; i < ARRAY_LEN(nice); i++) {
        step = nice[i] * p;
        if (span / step <= 6)
            break;
    }
    return (struct axis){ .low = floor(low / step + 1e-9) * step,
                          .high = ceil(high / step - 1e-9) * step,
                          .step = step };
}

struct axis axis_log(double low, double high)
{
    struct axis a = { .low = floor(log10(low) + 1e-9),
                      .high = ceil(log10(high) - 1e-9),
                      .step = 1,
                      .log = true };

    a.high = a.high > a.low ? a.high : a.low + 1;
    return a;
}

/* ..., 0.5, 1, 2, 5, 10, ...; 1 is number 0. */
static double third(int i)
{
    static const double digit[] = { 1, 2, 5 };
    int power = (int)floor(i / 3.0);

    return digit[i - 3 * power] * pow(10, power);
}

/* The number of the last one up to v. */
static int third_below(double v)
{
    int i = 3 * (int)floor(log10(v) + 1e-9);

    while (third(i + 1) <= v * (1 + 1e-9))
        i++;
    return i;
}

struct axis axis_log_fine(double low, double high)
{
    int first = third_below(low), last = third_below(high);

    last += third(last) < high * (1 - 1e-9) || last == first;
    return last - first > 8 ? axis_log(low, high) :
                              (struct axis){ .low = log10(third(first)),
                                             .high = log10(third(last)),
                                             .log = true };
}

double axis_at(const struct axis *a, double v)
{
    v = a->log ? log10(v) : v;
    return 100 * (v - a->low) / (a->high - a->low);
}

bool axis_tick(const struct axis *a, size_t i, double *v)
{
    if (!(a->step > 0)) {
        *v = third(third_below(pow(10, a->low)) + (int)i);
        return log10(*v) < a->high + 1e-9;
    }
    *v = a->low + (double)i * a->step;
    if (*v > a->high + a->step / 2)
        return false;
    *v = a->log ? pow(10, *v) : fabs(*v) < a->step * 1e-6 ? 0 : *v;
    return true;
}
