#!/usr/bin/env python3
"""Work directories made up for forge-report, and its page read again: are the numbers and the marks those that NumPy
makes of the records?

report.py make DIR LAYERS EXPERTS            a work directory (EXPERTS 0: dense), DIR/eval.jsonl, DIR/cheap.fts
report.py check DIR PAGE [EVAL [CHEAP [BESIDE]]]      the page of that directory, made with these files
report.py worse DIR                          ... as if it had lost twice as much
report.py rename DIR                         ... of modules that nobody else has
"""
import json
import os
import re
import sys
import xml.dom.minidom

import numpy as np

import fts

DENSE = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
         "mlp.down_proj"]
HITS = ["tokens", "scores", "weights", "squares", "g\u00b7|f|", "mass"]
FEW = 128


def records(layers, experts, r):
    """One list for each layer; the first layer is dense."""
    for i in range(layers):
        names = DENSE if not experts or not i else DENSE[:4] + [
            "mlp.experts.%d.%s_proj" % (x, p) for x in range(experts) for p in ("gate", "up", "down")]
        out = []
        for n in names:
            rtn = float(np.round(10 * r.random() ** 2 * (i + 1) + 0.1, 6))
            out.append(dict(module="model.layers.%d.%s" % (i, n), method="gptq", order="group", loss=round(rtn * (0.4 + 0.5 * r.random()), 6),
                            loss_rtn=rtn, **({} if experts else dict(loss_gptq=round(rtn * (0.9 + 0.1 * r.random()), 6))), samples=4096, damping=0.01, seconds=round(r.random() / 10, 6)))
        yield out


def hitmap(experts, r):
    tokens = np.floor(r.lognormal(5.5, 1.2, experts))
    tokens[r.integers(experts)] = 0
    weight = tokens * (0.2 + 0.1 * r.random(experts))
    return np.stack([tokens, tokens * r.random(experts), weight, weight * 0.3, weight * r.lognormal(0, 0.3, experts),
                     tokens * 0.3 + 200 * r.random(experts)], 1).astype("<f4")


def notes(lines):
    """As forge-solve writes them: of each module one, and its seconds, which are not part of the content."""
    for x in lines:
        rest = {k: v for k, v in x.items() if k not in ("module", "seconds")}
        yield fts.Tensor("note", x["module"], json.dumps(rest).encode())
        yield fts.Tensor("note", x["module"], json.dumps(dict(seconds=x["seconds"])).encode(), ancillary=True)


def read_notes(path):
    out = {}
    for t in fts.read(open(path, "rb")):
        if t.role == "note" and t.name != "run":
            out.setdefault(t.name, dict(module=t.name)).update(t.json())
    return list(out.values())


def save(path, frames):
    with open(path, "wb") as f:
        fts.write(f, frames)


def make(path, layers, experts):
    r = np.random.default_rng(7)
    for d in ("t", "c", "s", "model"):
        os.makedirs(os.path.join(path, d))
    run = dict(model=os.path.join(path, "model"), out="/nowhere/made-up-4bit", text="/x/calibration <b>text&.txt", sequences=8,
               seqlen=512, layout="awq", method="gptq", propagate="quantized", group=128, symmetric=False, effort="fast",
               layers=layers, T="t", C="c", S="s")
    maps, cheap, modules = [], [], 0
    for i, lines in enumerate(records(layers, experts, r)):
        modules += len(lines)
        if i == layers - 1:
            lines[-1].update(method="rtn", damping_tried=[0.01, 0.1, 1])
        if i == layers - 2:
            lines[0].update(damping=0.1, damping_tried=[0.01, 0.1])
            for k, n in ((1, 3), (3, 40)):
                lines[k].update(rows_kept=n)
        frames = [fts.Tensor("note", "run", b"{}")] + list(notes(lines))
        if experts and i:
            m = hitmap(experts, r)
            frames.append(fts.Tensor("hitmap", "model.layers.%d.mlp" % i, m))
            cheap.append(fts.Tensor("hitmap", "model.layers.%d.mlp" % i, np.float32(m * r.lognormal(0, 0.2, m.shape))))
        save("%s/s/codes-%d.fts" % (path, i), frames)
    run["modules"] = modules
    save(path + "/t/tokens.fts", [fts.Tensor("tokens", str(i), np.arange(500 + i, dtype="<i4"), sequence=i + 1) for i in range(7)])
    with open(path + "/settings.json", "w") as f:
        json.dump(run, f)
    with open(path + "/meter.json", "w") as f:
        f.write('{"seconds":123.4,"peak_bytes":1234567890,"status":0}\n')
    with open(path + "/s/stages.jsonl", "w") as f:
        f.write('{"stage":"tokens","seconds":0.5}\n')
        for i in range(layers):
            f.write('{"stage":"layer","layer":%d,"seconds":%.3f}\n{"stage":"pack","layer":%d,"seconds":0.25}\n' % (i, 1 + r.random(), i))
    with open(path + "/eval.jsonl", "w") as f:
        for i in range(layers):
            kl = 0.001 * (i + 1) * (1 + 0.2 * r.random())
            json.dump(dict(original="a", other="b", layer=i, sequences=4, tokens=2044, ppl_original=20.0, ppl=20 + 100 * kl, kl_mean=kl,
                           kl_sem=kl / 20, kl_median=kl / 2, kl_p99=9 * kl, kl_max=30 * kl, top1=1 - 5 * kl), f)
            f.write("\n")
    if cheap:
        save(path + "/cheap.fts", cheap)


# ---- the page ----

def rank(x):
    """From 0; equal values share the mean of theirs."""
    return np.array([(np.sum(x < v) + np.sum(x <= v) - 1) / 2 for v in x])


def spearman(x, y):
    return np.corrcoef(rank(x), rank(y))[0, 1]


def text(node):
    return node.data if node.nodeType == node.TEXT_NODE else "".join(map(text, node.childNodes))


def has(node, word):
    return word in node.getAttribute("class").split()


class Page:
    def __init__(self, path):
        page = open(path, encoding="utf-8").read()
        first, rest = page.split("\n", 1)
        assert first == "<!DOCTYPE html>"
        self.root = xml.dom.minidom.parseString(rest.encode()).documentElement
        self.text = text(self.root)
        for word in ("<script", "<link", "<img", "<iframe", "url(", "@import", "http:", "https:", "src="):
            assert word not in page, word + " in the page"

    def all(self, name, word=None, inside=None):
        return [n for n in (inside or self.root).getElementsByTagName(name) if word is None or has(n, word)]

    def section(self, name):
        found = [n for n in self.all("section") if n.getAttribute("id") == name]
        assert len(found) == 1, "%d sections %s" % (len(found), name)
        return found[0]


def kind_of(module):
    name = re.sub(r"^model\.layers\.\d+\.", "", module)
    return re.sub(r"\.experts\.\d+\.", ".experts.*.", name)


def same(got, want, what):
    assert abs(float(got) - want) <= 0.006 * abs(want) + 1e-9, "%s: %s, want %.6g" % (what, got, want)


def check_heat(page, lines, layers):
    kinds = list(dict.fromkeys(kind_of(x["module"]) for layer in lines for x in layer))
    cells = page.all("rect", "cell", page.section("loss"))
    want = {}
    for i, layer in enumerate(lines):
        for x in layer:
            a = want.setdefault((kind_of(x["module"]), i), [0, 0])
            a[0] += x["loss"]
            a[1] += x["loss_rtn"]
    assert len(cells) == len(want), "%d cells, want %d" % (len(cells), len(want))
    shade = {}
    for c in cells:
        kind, i, value = re.match(r"(.*), layer (\d+): .* (\S+)$", text(c)).groups()
        a, b = want[kind, int(i)]
        same(value, a / b, text(c))
        shade[a / b] = float(c.getAttribute("fill-opacity"))
    order = [shade[k] for k in sorted(shade)]
    assert order == sorted(order) and order[0] < order[-1], "colours do not follow the values"
    assert len({c.getAttribute("y") for c in cells}) == len(kinds)
    assert len({c.getAttribute("x") for c in cells}) == layers


def check_bars(page, lines):
    bars = [b for s in page.all("svg", "bars") for b in page.all("rect", "bar", s)]
    for i, layer in enumerate(lines):
        mine = {}
        for b in bars:
            m = re.match(r"layer %d, (.*): (\S+)$" % i, text(b))
            if m and m.group(1) in ("round to nearest", "this run"):
                mine[m.group(1)] = float(b.getAttribute("height"))
                same(m.group(2), sum(x["loss_rtn" if "nearest" in m.group(1) else "loss"] for x in layer), text(b))
        want = mine["round to nearest"] * sum(x["loss"] for x in layer) / sum(x["loss_rtn"] for x in layer)
        assert abs(mine["this run"] - want) < 0.02, "bars of layer %d: %s" % (i, mine)


def check_beside(page, lines, name, loss):
    """loss: of a record, what it lost there."""
    bars = [text(b) for b in page.all("rect", "bar")]
    by_name = {x["module"]: x for layer in lines for x in layer}
    for i, layer in enumerate(lines):
        found = [b for b in bars if b.startswith("layer %d, %s: " % (i, name))]
        same(found[0].split()[-1], sum(map(loss, layer)), "beside, layer %d" % i)
    for row in page.all("tr", inside=page.all("table", "worst")[0])[1:]:
        cells = [text(c) for c in page.all("td", inside=row)]
        same(cells[5], loss(by_name[cells[0]]), "beside: " + cells[0])
    all_of = [x for layer in lines for x in layer]
    tile = next(t for t in page.all("div", "tile") if text(t).strip().endswith("of the loss of " + name))
    same(text(page.all("b", inside=tile)[0]), sum(x["loss"] for x in all_of) / sum(map(loss, all_of)), "tile")


def check_worst(page, lines):
    want = sorted((x for layer in lines for x in layer), key=lambda x: -x["loss"] / x["loss_rtn"])[:12]
    got = [text(page.all("code", inside=row)[0]) for row in page.all("tr", inside=page.all("table", "worst")[0])[1:]]
    assert got == [x["module"] for x in want], "worst: %s" % got


def check_eval(page, path):
    lines = [json.loads(x) for x in open(path)]
    dots = [text(c) for c in page.all("circle", "dot", page.section("eval"))]
    assert len(dots) == 2 * len(lines)
    for x, kl, top1 in zip(lines, dots, dots[len(lines):]):
        assert " %d: " % x["layer"] in kl and " %d: " % x["layer"] in top1
        same(kl.split()[-1], x["kl_mean"], kl)
        same(top1.split()[-2], 100 * x["top1"], top1)


def table_after(page, title, inside):
    h3 = next(n for n in page.all("h3", inside=inside) if text(n) == title)
    n = h3.nextSibling
    while n.nodeName not in ("table", "details"):
        n = n.nextSibling
    return [[text(c) for c in page.all("td", inside=r)] for r in page.all("tr", inside=n)[1:]]


def check_experts(page, path, layers, cheap):
    maps, other = {}, {}
    for i in range(layers):
        for t in fts.read(open("%s/s/codes-%d.fts" % (path, i), "rb")):
            if t.role == "hitmap":
                maps[i] = t.array().astype(float)
    if not maps:
        return
    cells = [c for c in page.all("rect", "cell", page.section("experts")) if "expert" in text(c)]
    count = sum(len(m) for m in maps.values())
    if count <= 4096:
        assert len(cells) == 2 * count, "%d cells" % len(cells)
        for c, column in zip((cells[:count], cells[count:]), (0, 4)):
            for x in c:
                i, e, v = re.match(r"layer (\d+), expert (\d+): .* (\S+)$", text(x)).groups()
                m = maps[int(i)][:, column]
                same(v, m[int(e)] / m.mean(), text(x))
                assert has(x, "none") == (m[int(e)] == 0)
    else:
        paths = page.all("path", "cell", page.section("experts"))
        assert sum(p.getAttribute("d").count("M") for p in paths) > count, "cells as paths"
    none = sum(int((m[:, 0] == 0).sum()) for m in maps.values())
    few = sum(int(((m[:, 0] > 0) & (m[:, 0] < FEW)).sum()) for m in maps.values())
    assert "Experts without a single token (%d)" % none in page.text
    assert not few or "Experts with fewer than 128 tokens (%d)" % few in page.text
    for row, (i, m) in zip(table_after(page, "Balance", page.root), sorted(maps.items())):
        t = np.sort(m[:, 0])
        assert [int(x) for x in row[:7]] == [i, len(t), (t == 0).sum(), (t < FEW).sum(), t[0], t[len(t) // 2], t[-1]], row
    for row, (i, m) in zip(table_after(page, "Do the rankings agree?", page.root), sorted(maps.items())):
        for k in range(1, 6):
            assert abs(float(row[k]) - spearman(m[:, k], m[:, 0])) < 6e-4
    if cheap:
        for t in fts.read(open(cheap, "rb")):
            other[int(t.name.split(".")[2])] = t.array().astype(float)
        for row, (i, m) in zip(table_after(page, "Is the cheap pass enough?", page.root), sorted(maps.items())):
            for k in range(5):
                assert abs(float(row[k + 1]) - spearman(m[:, k], other[i][:, k])) < 6e-4


def check(path, page, evaluation=None, cheap=None, beside=None):
    layers = json.load(open(path + "/settings.json"))["layers"]
    lines = [read_notes("%s/s/codes-%d.fts" % (path, i)) for i in range(layers)]
    p = Page(page)
    assert "3521 tokens in 7 sequences of calibration <b>text&.txt" in p.text
    assert "gave 7 sequences, 8 were asked for" in p.text
    check_heat(p, lines, layers)
    check_bars(p, lines)
    check_worst(p, lines)
    kept = {x["module"]: x["rows_kept"] for layer in lines for x in layer if "rows_kept" in x}
    assert kept and "%d rows whose corrected target was too far kept their weights as the target; their modules (%d): %s." % (
        sum(kept.values()), len(kept), ", ".join(kept)) in p.text
    assert "Rounded to nearest, without their Hessian (1)" in p.text and "more damping than was asked for (1)" in p.text
    if evaluation:
        check_eval(p, evaluation)
    check_experts(p, path, layers, cheap)
    if beside:  # made up to lose twice as much
        check_beside(p, lines, beside, lambda x: 2 * x["loss"])
    elif "loss_gptq" in lines[0][0]:
        check_beside(p, lines, "plain GPTQ", lambda x: x["loss_gptq"])


def worse(path):
    for name in filter(re.compile("codes-").match, os.listdir(path + "/s")):
        lines = [dict(x, loss=2 * x["loss"]) for x in reversed(read_notes(path + "/s/" + name))]
        save(path + "/s/" + name, notes(lines))


def rename(path):
    for name in filter(re.compile("codes-").match, os.listdir(path + "/s")):
        save(path + "/s/" + name, notes(dict(x, module="other." + x["module"]) for x in read_notes(path + "/s/" + name)))


if sys.argv[1] == "worse":
    worse(sys.argv[2])
elif sys.argv[1] == "rename":
    rename(sys.argv[2])
elif sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
else:
    check(*sys.argv[2:])
