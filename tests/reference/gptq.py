"""GPTQ as its paper has it (Frantar et al., arXiv 2210.17323), in NumPy.

Cholesky of the inverse Hessian, one column at a time, the error of a column
spread over those behind it; in double precision and with nothing clever.
Written from the paper, not from forge-solve, which is tested against it.

Grids: scale[rows, groups] and zero[rows, groups], fixed beforehand; groups are
of inputs as they are stored, whatever the order of quantization.
"""
import numpy as np


def quantize(w, scale, zero, top=15):
    """Codes 0..top and the values they stand for; ties go to even."""
    code = np.clip(np.rint(w/scale) + zero, 0, top)
    return code, (code - zero)*scale


def order_of(diag, how, group):
    """The inputs in the order in which they are quantized."""
    n = len(diag)
    if how == "natural":
        return np.arange(n)
    if how == "activation":
        return np.argsort(-diag, kind="stable")
    groups = [np.arange(i, min(i + group, n)) for i in range(0, n, group)]
    if how == "group":
        groups.sort(key=lambda g: -diag[g].max())
    # forge's rule: a last group that is no multiple of 8 goes first
    groups.sort(key=lambda g: len(g) % 8 == 0)
    return np.concatenate([g[np.argsort(-diag[g], kind="stable")]
                           for g in groups])


def damp(h, damping):
    """H with dead inputs at 1 and damping * mean(live diagonal) added."""
    h = h.astype(np.float64).copy()
    dead = np.diag(h) == 0
    mean = np.diag(h)[~dead].mean() if (~dead).any() else 1.0
    h[dead, dead] = 1
    h[np.diag_indices(len(h))] += damping*mean
    return h, dead


def add_prior(h, prior, samples):
    """H as if prior tokens more for each live input had come, even ones."""
    h = h.astype(np.float64).copy()
    live = np.diag(h) > 0
    h[live, live] += prior*live.sum()/samples*np.diag(h)[live].mean()
    return h


def gptq(w, h, scale, zero, group, how="natural", damping=0.01, top=15):
    """(codes, fraction): codes[rows, cols], and for each how far the number
    that was rounded lies from the middle between two codes (0 is a tie)."""
    w = w.astype(np.float64).copy()
    n = w.shape[1]
    order = order_of(np.diag(h), how, group)
    h, dead = damp(h, damping)
    w[:, dead] = 0
    w, h = w[:, order], h[np.ix_(order, order)]
    # H^-1 = U^T U, U upper triangular
    u = np.linalg.cholesky(np.linalg.inv(h)).T
    codes = np.empty(w.shape, int)
    tie = np.empty(w.shape)
    for j in range(n):
        g = order[j]//group
        x = w[:, j]/scale[:, g]
        code, q = quantize(w[:, j], scale[:, g], zero[:, g], top)
        codes[:, order[j]] = code
        tie[:, order[j]] = np.abs(np.abs(x - np.rint(x)) - 0.5)
        err = (w[:, j] - q)/u[j, j]
        w[:, j:] -= np.outer(err, u[j, j:])
    return codes, tie


def loss(w, codes, h, scale, zero, group):
    """Sum over rows of (w - q) H (w - q)^T, without damping."""
    g = np.arange(w.shape[1])//group
    q = (codes - zero[:, g])*scale[:, g]
    d = np.where(np.diag(h) == 0, 0, w.astype(np.float64) - q)
    return float((d @ h.astype(np.float64)*d).sum())


def equal_codes(ours, w, h, scale, zero, group, how, damping, near=1e-4,
                top=15):
    """None, or what is wrong with our codes.  A row may leave the reference
    only at a number within `near` of a tie, where single precision may round
    the other way; what follows in that row follows from it."""
    ref, tie = gptq(w, h, scale, zero, group, how, damping, top)
    order = order_of(np.diag(h), how, group)
    for r in np.nonzero((ours != ref).any(1))[0]:
        first = order[np.nonzero(ours[r, order] != ref[r, order])[0][0]]
        if tie[r, first] > near:
            return ("row %d input %d: code %d, the reference has %d, and it is "
                    "no tie (%.2g)" % (r, first, ours[r, first],
                                       ref[r, first], tie[r, first]))
    return None
