/* units.h - sizes and durations as text, both ways.
 *
 * Input: a number, then nothing or B for bytes, K M G T or KiB MiB GiB TiB for
 * powers of 1024, KB MB GB TB for powers of 1000 (as GNU coreutils).  Output:
 * powers of 1024. */
#ifndef FORGE_UNITS_H
#define FORGE_UNITS_H

#include "common/base.h"

C_BEGIN

enum { UNIT_TEXT = 32 }; /* size of all text buffers below */

/* "5GB", "1.5GiB", "1000000" to whole bytes, 1 to 2^62; false: not a size. */
bool size_parse(const char *text, uint64_t *bytes);
/* "12 B", "3.56 MiB", "70.1 GiB"; returns text. */
const char *size_text(char text[UNIT_TEXT], double bytes);
/* "1.2 s", "3m05s", "2h10m", "12d03h"; returns text. */
const char *span_text(char text[UNIT_TEXT], double seconds);
/* Parameters or operations, in powers of 1000: "4.2 M", "671 G"; returns
 * text. */
const char *count_text(char text[UNIT_TEXT], double n);

C_END

#endif
