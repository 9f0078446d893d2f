/* fields.h - typed members of config.json. */
#ifndef FORGE_FIELDS_H
#define FORGE_FIELDS_H

#include "common/io/json.h"

/* Limits: more than any model has, and small enough that a product of two fits
 * an int64. */
enum { MAX_WIDTH = 1 << 24, MAX_LAYERS = 1 << 16, MAX_POSITION = 1 << 30 };

/* The member; NULL: absent or null. */
const struct json *field_get(const struct json *o, const char *key);

/* Read a member.  Absent or null: *out is unchanged.  E_DATA: another type, or
 * out of range (field_number: not a positive finite number). */
MUST_CHECK int field_int(const struct json *o, const char *key, int64_t min,
                         int64_t max, int64_t *out, struct err *e);
MUST_CHECK int field_number(const struct json *o, const char *key, double *out,
                            struct err *e);
MUST_CHECK int field_bool(const struct json *o, const char *key, bool *out,
                          struct err *e);
MUST_CHECK int field_string(const struct json *o, const char *key,
                            const char **out, struct err *e);
/* An integer from 1 to max; E_DATA also if it is absent. */
MUST_CHECK int field_need(const struct json *o, const char *key, int64_t max,
                          int64_t *out, struct err *e);
/* E_DATA: member `key`, n, is not a multiple of member `of`, m. */
MUST_CHECK int field_multiple(const char *key, int64_t n, const char *of,
                              int64_t m, struct err *e);

#endif
