"""Grids as grid.h describes them, in double precision and one at a time.

A choice is judged by its cost, not by its bits: two candidates whose costs
agree to single precision are both right.
"""
import numpy as np

HI, LO = 1.05, 0.45


def decode(meta, scale_dtype="F16"):
    """qmeta4 -> (scale as it is stored, zero)."""
    meta = np.asarray(meta, np.uint32)
    q = (meta & 0xffff).astype(np.uint16).view(np.int16).reshape(meta.shape)
    scale = np.exp2(q/256.0).astype(np.float32)
    if scale_dtype == "F16":
        scale = scale.astype(np.float16)
    else:
        u = scale.view(np.uint32)
        scale = ((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000).astype(
            np.uint32).view(np.float32)
    eight = meta >> 26 & 1  # bit 2 of the flags: codes of 8 bits
    zero = np.where(meta >> 24 & 1, np.where(eight, 128, 8),
                    meta >> 16 & np.where(eight, 255, 15))
    scale = np.where(meta >> 25 & 1, -scale, scale)  # bit 1 of the flags
    return scale.astype(np.float64), zero.astype(np.float64)


def encode(scale, zero, symmetric, bits=4):
    q = int(np.clip(np.rint(np.log2(scale)*256), -14*256, 16*256 - 1))
    return ((q & 0xffff) | int(zero) << 16 | (1 << 24 if symmetric else 0)
            | (bits == 8) << 26)


def top_of(meta):
    """The largest code of a grid."""
    return 255 if int(meta) >> 26 & 1 else 15


def costs(w, c, metas, norm, scale_dtype="F16"):
    """Of each grid, whose codes have as many bits as the first's."""
    s, z = (x[:, None] for x in decode(np.array(metas), scale_dtype))
    q = (np.clip(np.rint(w/s) + z, 0, top_of(metas[0])) - z)*s
    return (c*np.abs(w - q)**norm).sum(axis=1)


def candidates(w, symmetric, search, n, scale_dtype="F16", bits=4):
    lo, hi = min(w.min(), 0), max(w.max(), 0)
    top = 2**bits - 1
    if search == "absmax" or n == 1:
        factors = [1.0]
    else:
        factors = [HI - (HI - LO)*i/(n - 1) for i in range(n)]
    for f in factors:
        if symmetric:
            yield encode(np.float32(f*2*max(-lo, hi)/top), 2**bits//2, True, bits)
            continue
        scale = np.float32(f*(hi - lo)/top)
        stored = decode(np.array([encode(scale, 0, False)]), scale_dtype)[0][0]
        zero = int(np.clip(np.rint(-f*lo/stored), 0, top))
        for z in [zero] if search == "absmax" else [zero, zero - 1, zero + 1]:
            if 0 <= z <= top:
                yield encode(scale, z, False, bits)


def judge(w, meta, group, symmetric, search, norm, n, importance=None,
          scale_dtype="F16", bits=4):
    """None, or which of our choices is worse than another candidate."""
    w = w.astype(np.float64)
    for r in range(w.shape[0]):
        for g, first in enumerate(range(0, w.shape[1], group)):
            x = w[r, first:first + group]
            c = (np.ones(len(x)) if importance is None
                 else importance[first:first + group])
            ours = int(meta[r, g])
            if not x.any():
                zero = 2**bits//2 if symmetric else 8
                want = (zero << 16 | (1 << 24 if symmetric else 0)
                        | (bits == 8) << 26)
                if ours != want:
                    return "row %d group %d: zeros give %#x" % (r, g, ours)
                continue
            if top_of(ours) != 2**bits - 1:
                return "row %d group %d: %#x is not of %d bits" % (
                    r, g, ours, bits)
            others = list(candidates(x, symmetric, search, n, scale_dtype, bits))
            best = costs(x, c, others, norm, scale_dtype).min()
            mine = costs(x, c, [ours], norm, scale_dtype)[0]
            if mine > best*(1 + 1e-5):
                return "row %d group %d: cost %g, best %g" % (r, g, mine, best)
            if search == "absmax" and ours not in others:
                return "row %d group %d: %#x is not absmax" % (r, g, ours)
    return None
