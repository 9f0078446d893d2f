/* json.h - strict JSON (RFC 8259) reader on cJSON, and a writer.  Only json.c
 * includes cJSON.
 *
 * Refused with line and column (E_DATA): anything after the value, duplicate
 * keys, \u0000, invalid UTF-8, raw control characters, a byte order mark,
 * numbers such as 01, integers beyond 2^53 (not exact in a double), depth over
 * 64, text longer than the caller allows. */
#ifndef FORGE_JSON_H
#define FORGE_JSON_H

#include "common/base.h"

/* Types of JSON values. */
enum json_type {
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

struct json;     /* a value, owned by its document */
struct json_doc; /* a parsed document */

/* Parse text[len], which need not end in NUL and is not kept.  what: prefix of
 * messages, e.g. "'config.json'".  E_DATA: not strict JSON; E_TEMP. */
MUST_CHECK int json_parse(struct json_doc **d, const char *text, size_t len,
                          const char *what, struct err *e);
/* file_slurp() and json_parse(). */
MUST_CHECK int json_read_file(struct json_doc **d, const char *path, size_t max,
                              struct err *e);
void json_free(struct json_doc *d); /* NULL is allowed */
const struct json *json_root(const struct json_doc *d);

enum json_type json_type(const struct json *v);
/* Member of an object by exact name; NULL: absent, or v is NULL or not an
 * object.  Hashed for objects of 9 members or more. */
const struct json *json_get(const struct json *v, const char *key);
/* Iterate over the elements of an array or members of an object, in document
 * order: for (v = json_first(a); v; v = json_after(v)).  NULL: none, or no
 * more. */
const struct json *json_first(const struct json *v);
const struct json *json_after(const struct json *v);
/* Name of a member; "" for other values. */
const char *json_key(const struct json *v);
/* Number of elements or members. */
size_t json_count(const struct json *v);

/* Typed access.  False, with *out unchanged: v is NULL, JSON null or of
 * another type (json_int: not an integer).  Strings live as long as the
 * document. */
MUST_CHECK bool json_string(const struct json *v, const char **out);
MUST_CHECK bool json_number(const struct json *v, double *out);
MUST_CHECK bool json_int(const struct json *v, int64_t *out);
MUST_CHECK bool json_bool(const struct json *v, bool *out);

/* ---- writing: a growing buffer, commas put by themselves ---- */

/* Writer into a growing buffer; commas and indentation are inserted. */
struct json_writer {
    char *text; /* NUL-terminated; the caller frees it */
    size_t len, cap;
    int depth, indent;  /* indent: spaces per level, 0: all on one line */
    bool comma, failed; /* failed: out of memory; check it once at the end */
    bool after_key;
};

/* Start an empty document. */
void jw_init(struct json_writer *w, int indent);
void jw_begin(struct json_writer *w, char bracket); /* '{' or '[' */
void jw_end(struct json_writer *w, char bracket);   /* '}' or ']' */
void jw_key(struct json_writer *w, const char *key);
/* A NUL-terminated string. */
void jw_string(struct json_writer *w, const char *s);
/* A string of n bytes, which may contain NULs. */
void jw_text(struct json_writer *w, const char *s, size_t n);
void jw_int(struct json_writer *w, int64_t v);
/* The shortest decimal that reads back as v; null for NaN and infinity. */
void jw_number(struct json_writer *w, double v);
void jw_bool(struct json_writer *w, bool v);
void jw_null(struct json_writer *w);
/* A parsed value with all below it. */
void jw_value(struct json_writer *w, const struct json *v);
/* JSON text, inserted unchecked. */
void jw_raw(struct json_writer *w, const char *json);

/* Members of an object; what is not known is left out: NULL or "", a number that
 * is not finite, a count below 0. */
void jw_known_text(struct json_writer *w, const char *key, const char *s);
void jw_known_number(struct json_writer *w, const char *key, double v);
void jw_known_count(struct json_writer *w, const char *key, int64_t n);

#endif
