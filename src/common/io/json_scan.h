/* json_scan.h - checks that a text is strict JSON (RFC 8259) before cJSON,
 * which accepts more, parses it. */
#ifndef FORGE_JSON_SCAN_H
#define FORGE_JSON_SCAN_H

#include "common/base.h"

enum { JSON_MAX_DEPTH = 64 };

/* E_DATA "what: line L, column C: why": the text is not strict JSON, see
 * json.h. */
MUST_CHECK int json_scan(const char *text, size_t len, const char *what,
                         struct err *e);
/* Returns E_DATA with a message that locates key number nth (from 0, in
 * document order) as a duplicate. */
MUST_CHECK int json_scan_duplicate(const char *text, size_t len, size_t nth,
                                   const char *what, struct err *e);

#endif
