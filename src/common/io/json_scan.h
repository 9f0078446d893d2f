/* json_scan.h - the strictness of json.c: a pass over the text that accepts
 * RFC 8259 and nothing else, before cJSON, which accepts more, sees it. */
#ifndef FORGE_JSON_SCAN_H
#define FORGE_JSON_SCAN_H

#include "common/base.h"

enum { JSON_MAX_DEPTH = 64 };

/* E_DATA with "what: line L, column C: why" when text is not strict JSON. */
MUST_CHECK int json_scan(const char *text, size_t len, const char *what,
                         struct err *e);
/* E_DATA that places a duplicate key: the nth (from 0) key of the text. */
MUST_CHECK int json_scan_duplicate(const char *text, size_t len, size_t nth,
                                   const char *what, struct err *e);

#endif
