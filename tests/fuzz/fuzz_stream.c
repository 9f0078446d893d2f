/* Any bytes at all: the reader says yes or no, and touches nothing else.  In
 * a second pass every checksum is made right first, to reach what is behind. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/io/crc32c.h"
#include "common/io/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Make the checksums of every header, meta and payload right, so that what is
 * behind them is reached. */
static void fuzz_seal(uint8_t *s, size_t n)
{
    struct wire h;

    for (size_t at = 0; at <= n && n - at >= sizeof(h);) {
        size_t left = n - at - sizeof(h);
        uint8_t *body = s + at + sizeof(h);

        memcpy(&h, s + at, sizeof(h));
        if (h.meta_len > left || h.pad_len > left - h.meta_len ||
            h.payload_len > left - h.meta_len - h.pad_len)
            h.payload_len = 0;
        else
            h.payload_hash =
                XXH3_64bits(body + h.meta_len + h.pad_len, h.payload_len);
        if (h.meta_len <= left)
            h.meta_crc = crc32c(0, body, h.meta_len);
        frame_seal(&h);
        memcpy(s + at, &h, sizeof(h));
        if (h.meta_len > left || h.pad_len > left - h.meta_len)
            return;
        at += sizeof(h) + h.meta_len + h.pad_len + h.payload_len;
    }
}

static void read_all(const uint8_t *data, size_t n, bool skim)
{
    int fd = memfd_create("fuzz", 0), rc;
    struct stream_reader *r;
    char path[64], shape[64];
    struct frame f;
    struct err e;
    uint64_t at;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (write(fd, data, n) == (ssize_t)n &&
        stream_open(&r, path, NULL, &e) == 0) {
        while ((rc = skim ? stream_skim(r, &f, &at, &e) :
                            stream_next(r, &f, &e)) > 0) {
            frame_shape(&f, shape, sizeof(shape));
            frame_has_module(&f, "x");
            if (skim && f.len < 1 << 20) {
                void *p = malloc(f.len + 1); /* an exact one */

                if (stream_payload(r, at, p, f.len, &e) < 0)
                    rc = 0; /* a wrong hash is no crash */
                free(p);
            }
        }
        stream_close(r);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n + 1);

    read_all(data, n, false);
    memcpy(copy, data, n);
    fuzz_seal(copy, n);
    read_all(copy, n, false);
    read_all(copy, n, true);
    free(copy);
    return 0;
}
