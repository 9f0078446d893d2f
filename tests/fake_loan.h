/* fake_loan.h - of the fake device's table, see device/device.h. */
#ifndef FORGE_FAKE_LOAN_H
#define FORGE_FAKE_LOAN_H

#include "device/device.h"

int fake_block(struct cuda_context *c, void **p, size_t n, struct err *e);
void fake_drop(struct cuda_context *c, void *p);
int fake_handle(struct cuda_context *c, const void *block,
                uint8_t handle[DEVICE_HANDLE], struct err *e);
int fake_map(struct cuda_context *c, const uint8_t handle[DEVICE_HANDLE],
             const void **p, struct err *e);
int fake_fetch(struct cuda_context *c, void *host, const void *from, size_t n,
               struct err *e);
int fake_settle(struct cuda_context *c, struct err *e);

#endif
