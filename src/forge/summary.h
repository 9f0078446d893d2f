/* summary.h - prints the summary of a quantization. */
#ifndef FORGE_SUMMARY_H
#define FORGE_SUMMARY_H

#include "forge/request.h"
#include "work/records.h"

/* Bytes of the safetensors files of a checkpoint directory. */
uint64_t summary_bytes(const char *dir);
/* Print the summary on standard output.  all: records of all modules; peak:
 * bytes of memory. */
void summary_print(const struct request *r, const struct records *all,
                   double seconds, uint64_t peak);

#endif
