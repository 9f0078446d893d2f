/* units.c - see units.h. */
#include "common/cli/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double most = (double)(1LL << 62);

bool size_parse(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    size_t n = strspn(text, "0123456789");
    const char *end = text + n, *unit;
    double v, base = 1000;

    if (!n)
        return false;
    if (*end == '.') {
        n = strspn(end + 1, "0123456789");
        if (!n)
            return false;
        end += n + 1;
    }
    v = strtod(text, NULL);
    unit = *end ? strchr(units, *end == 'k' ? 'K' : *end) : NULL;
    if (unit) {
        if (!end[1] || !strcmp(end + 1, "iB") || !strcmp(end + 1, "i"))
            base = 1024;
        else if (strcmp(end + 1, "B") != 0)
            return false;
        for (; unit >= units; unit--)
            v *= base;
    } else if (*end && strcmp(end, "B") != 0) {
        return false;
    }
    if (!(v >= 1 && v <= most))
        return false;
    *bytes = (uint64_t)v;
    return true;
}

static const char *scaled(char text[UNIT_TEXT], double n, double base,
                          const char *const unit[], size_t units)
{
    size_t u = 0;

    for (; n >= 999.5 && u + 1 < units; u++)
        n /= base;
    snprintf(text, UNIT_TEXT,
             n < 9.995          ? "%.2f %s" :
             u == 0 || n > 99.9 ? "%.0f %s" :
                                  "%.1f %s",
             n, unit[u]);
    return text;
}

const char *size_text(char text[UNIT_TEXT], double bytes)
{
    static const char *const unit[] = {
        "B", "KiB", "MiB", "GiB", "TiB", "PiB"
    };

    if (bytes < 999.5) {
        snprintf(text, UNIT_TEXT, "%.0f B", bytes);
        return text;
    }
    return scaled(text, bytes, 1024, unit, ARRAY_LEN(unit));
}

const char *count_text(char text[UNIT_TEXT], double n)
{
    static const char *const unit[] = { "", "k", "M", "G", "T", "P", "E" };

    return scaled(text, n, 1000, unit, ARRAY_LEN(unit));
}

const char *span_text(char text[UNIT_TEXT], double s)
{
    long long whole = s < 0 ? 0 : s < 1e15 ? (long long)(s + 0.5) : 0;

    if (s < 59.95)
        snprintf(text, UNIT_TEXT, "%.1f s", s < 0 ? 0 : s);
    else if (whole < 3600)
        snprintf(text, UNIT_TEXT, "%lldm%02llds", whole / 60, whole % 60);
    else if (whole < 100 * 3600)
        snprintf(text, UNIT_TEXT, "%lldh%02lldm", whole / 3600,
                 whole / 60 % 60);
    else
        snprintf(text, UNIT_TEXT, "%lldd%02lldh", whole / 86400,
                 whole / 3600 % 24);
    return text;
}
