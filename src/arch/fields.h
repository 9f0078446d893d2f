/* fields.h - members of config.json: absent, null, or of the right kind. */
#ifndef FORGE_FIELDS_H
#define FORGE_FIELDS_H

#include "common/io/json.h"

/* More than any model has; small enough that products of two fit an int64. */
enum { MAX_WIDTH = 1 << 24, MAX_LAYERS = 1 << 16, MAX_POSITION = 1 << 30 };

/* The member, or NULL when it is absent or null. */
const struct json *field_get(const struct json *o, const char *key);

/* The following leave *out alone when the field is absent or null, and return
 * E_DATA when it is something else than they say. */
MUST_CHECK int field_int(const struct json *o, const char *key, int64_t min,
                         int64_t max, int64_t *out, struct err *e);
/* A positive finite number. */
MUST_CHECK int field_number(const struct json *o, const char *key, double *out,
                            struct err *e);
MUST_CHECK int field_bool(const struct json *o, const char *key, bool *out,
                          struct err *e);
MUST_CHECK int field_string(const struct json *o, const char *key,
                            const char **out, struct err *e);
/* An integer from 1 to max that must be there. */
MUST_CHECK int field_need(const struct json *o, const char *key, int64_t max,
                          int64_t *out, struct err *e);

#endif
