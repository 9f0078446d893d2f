/* fields.c - see fields.h. */
#include "arch/fields.h"

#include <math.h>

const struct json *field_get(const struct json *o, const char *key)
{
    const struct json *v = json_get(o, key);

    return v && json_type(v) != JSON_NULL ? v : NULL;
}

int field_int(const struct json *o, const char *key, int64_t min, int64_t max,
              int64_t *out, struct err *e)
{
    const struct json *v = field_get(o, key);
    int64_t x;

    if (!v)
        return 0;
    if (!json_int(v, &x) || x < min || x > max)
        return err_set(e, E_DATA, "%s is not an integer from %lld to %lld", key,
                       (long long)min, (long long)max);
    *out = x;
    return 0;
}

int field_need(const struct json *o, const char *key, int64_t max, int64_t *out,
               struct err *e)
{
    if (!field_get(o, key))
        return err_set(e, E_DATA, "%s is missing", key);
    return field_int(o, key, 1, max, out, e);
}

int field_number(const struct json *o, const char *key, double *out,
                 struct err *e)
{
    const struct json *v = field_get(o, key);
    double x;

    if (!v)
        return 0;
    if (!json_number(v, &x) || !isfinite(x) || x <= 0)
        return err_set(e, E_DATA, "%s is not a positive number", key);
    *out = x;
    return 0;
}

int field_bool(const struct json *o, const char *key, bool *out, struct err *e)
{
    const struct json *v = field_get(o, key);

    if (v && !json_bool(v, out))
        return err_set(e, E_DATA, "%s is neither true nor false", key);
    return 0;
}

int field_string(const struct json *o, const char *key, const char **out,
                 struct err *e)
{
    const struct json *v = field_get(o, key);

    if (v && !json_string(v, out))
        return err_set(e, E_DATA, "%s is not a string", key);
    return 0;
}

int field_multiple(const char *key, int64_t n, const char *of, int64_t m,
                   struct err *e)
{
    return n % m ? err_set(e, E_DATA, "%s %lld is not a multiple of %s %lld",
                           key, (long long)n, of, (long long)m) :
                   0;
}
