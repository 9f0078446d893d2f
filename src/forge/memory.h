/* memory.h - what memory there is. */
#ifndef FORGE_MEMORY_H
#define FORGE_MEMORY_H

/* Bytes that processes may still take: of the machine, or of the control group
 * that we are in (a container, a batch job), whichever has less; 0: not known. */
double memory_available(void);

#endif
