/* memory.h - available memory. */
#ifndef FORGE_MEMORY_H
#define FORGE_MEMORY_H

/* Bytes of memory that processes can still allocate: the smaller one of the
 * machine's and the control group's (a container, a batch job); 0: not
 * known. */
double memory_available(void);

#endif
