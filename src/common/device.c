/* device.c - see device.h. */
#include "common/device.h"

int device_check(int device, struct err *e)
{
    if (device == DEVICE_CUDA)
        return err_set(e, E_DEVICE,
                       "--device cuda: no usable device: this build computes "
                       "on the CPU");
    return 0;
}
