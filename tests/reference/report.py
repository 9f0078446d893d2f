#!/usr/bin/env python3
"""Work directories made up for forge-report, and its page read again: are the numbers and the marks those that NumPy
makes of the records?

report.py make DIR LAYERS EXPERTS            a work directory (EXPERTS 0: dense), DIR/eval.jsonl, DIR/cheap.fts
report.py check DIR PAGE [EVAL [CHEAP [BESIDE]]]      the page of that directory, made with these files
report.py data DIR JSON CSV                  the files beside the page
report.py peers PAGE EVAL NAME=EVAL...       the evaluations beside the run's
report.py peer FILE KL SEED                  figures of another checkpoint
report.py layout PAGE                        contrast, names of axes, what fits a narrow window
report.py worse DIR                          ... as if it had lost twice as much
report.py rename DIR                         ... of modules that nobody else has
"""
import csv
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


EDGES = 10 ** np.arange(-6, 1.01, 0.25)


def figures(kl, r, **more):
    """A line of forge-eval --json; the divergences have the mean that is asked for."""
    x = r.lognormal(0, 1.5, 2044)
    x *= kl / x.mean()
    counts = np.histogram(x, np.r_[-np.inf, EDGES, np.inf])[0]
    along = []
    for low in [0, *(16 << np.arange(5)).tolist()]:
        part = x.reshape(4, 511)[:, low:2 * low or 16]
        along.append({"from": low, "tokens": part.size, "ppl_original": 60 / (1 + low) ** 0.2, "ppl": 62 / (1 + low) ** 0.2 + 100 * kl,
                      "kl_mean": float(part.mean()), "kl_sem": float(part.std(ddof=1) / np.sqrt(part.size))})
    return dict(original="/m/a", other="/m/b", **more, dtype="f32", text="/x/judged & <i>.txt", text_sha256="ab" * 32, seqlen=512,
                sequences=4, tokens=2044, ppl_original=20.0, ppl=20 + 100 * kl, kl_mean=kl, kl_sem=kl / 20,
                kl_median=float(np.median(x)), kl_p99=float(np.quantile(x, .99)), kl_max=float(x.max()), top1=1 - 5 * kl,
                kl_histogram={"from": 1e-6, "per_decade": 4, "counts": counts.tolist()}, by_position=along)


def make(path, layers, experts):
    r = np.random.default_rng(7)
    for d in ("t", "c", "s", "model"):
        os.makedirs(os.path.join(path, d))
    run = dict(model=os.path.join(path, "model"), out="/nowhere/made-up-4bit", text="/x/calibration <b>text&.txt", sequences=8,
               seqlen=512, layout="awq", method="gptq", propagate="quantized", group=128, symmetric=False, effort="fast",
               layers=layers, T="t", C="c", S="s", host="made-up", cpu="avx2", started=1700000000,
               command=["forge", "quantize", "/m/it's", "out put", "--sequences", "8"])
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
            json.dump(figures(kl, r, layer=i), f)
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
        self.style = text(self.all("style")[0])
        assert len(self.all("script")) == 1 and not self.all("script")[0].attributes.length
        for word in ("<link", "<img", "<iframe", "url(", "@import", "http:", "https:", "src=", "fetch(", "XMLHttp"):
            assert word not in page, word + " in the page"

    def all(self, name, word=None, inside=None):
        return [n for n in (inside or self.root).getElementsByTagName(name) if word is None or has(n, word)]

    def section(self, name):
        found = [n for n in self.all("section") if n.getAttribute("id") == name]
        assert len(found) == 1, "%d sections %s" % (len(found), name)
        return found[0]

    def titles(self, name, word, inside=None):
        return [n.getAttribute("title") for n in self.all(name, word, inside)]

    def rows(self):
        """Of the table of modules: the texts of the cells by the column's head."""
        table = self.all("table", "sortable")[0]
        head, *rows = [[text(c) for c in r.childNodes if c.nodeName in ("th", "td")] for r in self.all("tr", inside=table)]
        return [dict(zip(head, r)) for r in rows]


def styles(node):
    return dict(x.split(":") for x in node.getAttribute("style").split(";"))


def percent(node, what):
    return float(styles(node)[what].rstrip("%"))


def kind_of(module):
    name = re.sub(r"^model\.layers\.\d+\.", "", module)
    return re.sub(r"\.experts\.\d+\.", ".experts.*.", name)


def same(got, want, what):
    assert abs(float(got) - want) <= 0.006 * abs(want) + 1e-9, "%s: %s, want %.6g" % (what, got, want)


def check_heat(page, lines, layers):
    kinds = list(dict.fromkeys(kind_of(x["module"]) for layer in lines for x in layer))
    cells = page.all("td", "cell", page.section("loss"))
    want = {}
    for i, layer in enumerate(lines):
        for x in layer:
            a = want.setdefault((kind_of(x["module"]), i), [0, 0])
            a[0] += x["loss"]
            a[1] += x["loss_rtn"]
    assert len(cells) == len(want), "%d cells, want %d" % (len(cells), len(want))
    shade = {}
    for c in cells:
        i, kind, value = re.match(r"layer (\d+), module (.*): (\S+) of the loss", c.getAttribute("title")).groups()
        a, b = want[kind, int(i)]
        same(value, a / b, c.getAttribute("title"))
        assert abs(float(text(c)) - a / b) <= 0.00501
        shade[a / b] = int(re.match(r"cell h(\d+)$", c.getAttribute("class")).group(1))
    order = [shade[k] for k in sorted(shade)]
    assert order == sorted(order) and order[0] == 0 and order[-1] == 11, "colours do not follow the values: %s" % order
    heads = [text(x) for t in page.all("table", "map", page.section("loss")) for x in page.all("th", "up", t)]
    assert heads[:len(kinds)] == kinds, heads


def check_bars(page, lines):
    bars = page.all("i", "bar")
    for i, layer in enumerate(lines):
        mine = {}
        for b in bars:
            m = re.match(r"layer %d, (.*): (\S+)$" % i, b.getAttribute("title"))
            if m and m.group(1) in ("round to nearest", "this run"):
                mine[m.group(1)] = percent(b, "height")
                same(m.group(2), sum(x["loss_rtn" if "nearest" in m.group(1) else "loss"] for x in layer), m.group(0))
        want = mine["round to nearest"] * sum(x["loss"] for x in layer) / sum(x["loss_rtn"] for x in layer)
        assert abs(mine["this run"] - want) < 0.02, "bars of layer %d: %s" % (i, mine)


def check_beside(page, lines, name, loss):
    """loss: of a record, what it lost there."""
    bars = page.titles("i", "bar")
    by_name = {x["module"]: x for layer in lines for x in layer}
    for i, layer in enumerate(lines):
        found = [b for b in bars if b.startswith("layer %d, %s: " % (i, name))]
        same(found[0].split()[-1], sum(map(loss, layer)), "beside, layer %d" % i)
    for row in page.rows():
        same(row[name], loss(by_name[row["name"]]), "beside: " + row["name"])
    all_of = [x for layer in lines for x in layer]
    tile = next(t for t in page.all("div", "tile") if text(t).strip().endswith("of the loss of " + name))
    same(text(page.all("b", inside=tile)[0]), sum(x["loss"] for x in all_of) / sum(map(loss, all_of)), "tile")


def check_modules(page, lines):
    want = sorted((x for layer in lines for x in layer), key=lambda x: -x["loss"] / x["loss_rtn"])
    rows = page.rows()
    assert len(rows) == min(1000, len(want))
    assert len(want) <= 1000 or "These are 1000 of %d" % len(want) in page.text
    for x, row in zip(want, rows):
        assert row["name"] == x["module"] and row["method"] == x["method"]
        for key, value in (("loss", x["loss"]), ("RTN", x["loss_rtn"]), ("share", x["loss"] / x["loss_rtn"]), ("ms", 1000 * x["seconds"])):
            same(row[key], value, x["module"])


def curve(page, figure, name):
    """The points of a line, x and y from 0 to 1."""
    path = page.all("path", "curve", figure)
    path = [p for p in path if has(p, name)][0].getAttribute("d")
    points = np.array([[float(v) for v in x.split()] for x in re.split("[ML]", path)[1:]])
    return points[:, 0] / 1000, 1 - points[:, 1] / 1000


def ticks(page, figure, axis, side):
    """The values at the ends of an axis: what its lowest and its highest label say, continued to 0 and 100 %."""
    labels = page.all("span", inside=page.all("div", axis, figure)[0])
    at = np.array([percent(x, side) for x in labels]) / 100
    value = np.array([float(text(x).rstrip(" %")) for x in labels])
    return at, value


def check_histogram(page, figure, name, counts):
    """The steps are the shares of the tokens between two edges; tails count in the first and the last."""
    x, y = curve(page, figure, name)
    at, value = ticks(page, figure, "xaxis", "left")
    x = 10 ** np.interp(x, at, np.log10(value))
    at, value = ticks(page, figure, "yaxis", "bottom")
    y = np.interp(y, at, value) / 100
    edges, shares = x[1:-1:2], y[1:-1:2]
    first, last = np.argmin(abs(np.log(EDGES / edges[0]))), np.argmin(abs(np.log(EDGES / x[-1])))
    counts = np.array(counts)
    want = np.r_[counts[:first + 2].sum(), counts[first + 2:last], counts[last:].sum()] / counts.sum()
    assert len(want) == len(shares) and np.abs(shares - want).max() < 2e-3, (shares, want)
    assert np.abs(np.log(edges / EDGES[first:first + len(edges)])).max() < 0.02


def check_along(page, section, figures):
    """Perplexity and KL by position: lines, dots and table; figures: by the name of the evaluation, this run's first."""
    bins = {name: x["by_position"] for name, x in figures.items()}
    ours, classes = bins["this run"], ("ours", "rtn", "gptq")
    found = page.all("figure", inside=section)[1:3]
    for figure, name, key in zip(found, ("perplexity, logarithmic", "KL divergence (nats)"), ("ppl", "kl_mean")):
        assert len(page.all("u", inside=figure)) >= 3
        assert text(page.all("p", "yname", figure)[0]) == name
        assert [text(x) for x in page.all("span", inside=page.all("div", "xaxis", figure)[0])] == [str(x["from"]) for x in ours]
        at, value = ticks(page, figure, "yaxis", "bottom")
        value = np.log(value) if key == "ppl" else value
        lines = [(*x, key) for x in zip(bins, classes, bins.values())]
        if key == "ppl":
            lines.append(("original", "original", ours, "ppl_original"))
        assert len(page.all("i", "dot", figure)) == len(ours) * len(lines)
        for who, kind, points, member in lines:
            y = np.interp(curve(page, figure, kind)[1], at, value)
            want = [np.log(x[member]) if key == "ppl" else x[member] for x in points]
            assert np.abs(y - want).max() < 2e-4 * value[-1], (who, y, want)
            for title, x in zip(page.titles("i", "dot " + kind, figure), points):
                assert title.startswith("%s, position in the sequence, from %d: " % (who, x["from"])), title
                same(title.split()[-1], x[member], title)
    table = next(t for t in page.all("table", "figures", section) if text(page.all("th", inside=t)[0]) == "positions")
    rows = [[text(c) for c in r.childNodes if c.nodeName in ("th", "td")] for r in page.all("tr", inside=table)][1:]
    ends = [x["from"] - 1 for x in ours[1:]] + [figures["this run"]["seqlen"] - 2]
    assert len(rows) == len(ours)
    for k, row in enumerate(rows):
        assert row[:2] == ["%d\u2013%d" % (ours[k]["from"], ends[k]), str(ours[k]["tokens"])], row
        same(row[2], ours[k]["ppl_original"], "original")
        for got, want in zip(row[3:], (x for points in bins.values() for x in (points[k]["ppl"], points[k]["kl_mean"]))):
            same(got, want, "positions " + row[0])


def check_eval(page, path):
    lines = [json.loads(x) for x in open(path)]
    section = page.section("eval")
    dots = [x for x in page.titles("i", "dot", section) if "up to layer" in x]
    assert len(dots) == 2 * len(lines)
    check_along(page, section, {"this run": lines[-1]})
    for x, kl, top1 in zip(lines, dots, dots[len(lines):]):
        for title in (kl, top1):
            assert title.startswith("this run, quantized up to layer %d: " % x["layer"])
        same(kl.split()[-1], x["kl_mean"], kl)
        same(top1.split()[-2], 100 * x["top1"], top1)
    assert "b against %s, on judged & <i>.txt (SHA-256 abababababab\u2026): predictions at 2044 tokens, in 4 sequences of 512 tokens; " \
        "computed in f32" % text(page.all("h1")[0]).removesuffix(" in 4 bits") in text(section)
    check_histogram(page, page.all("figure", inside=section)[0], "ours", lines[-1]["kl_histogram"]["counts"])


def check_peers(path, ours, *others):
    """The table of figures, the bars and the histograms of several evaluations."""
    page = Page(path)
    all_of = {"this run": ours, **dict(x.split("=") for x in others)}
    all_of = {k: [json.loads(x) for x in open(v)] for k, v in all_of.items()}
    head, *rows = [[text(c) for c in r.childNodes if c.nodeName in ("th", "td")]
                   for r in page.all("tr", inside=page.all("table", "figures")[0])]
    assert head == ["", "original", *all_of]
    for row, key in zip(rows, ("ppl", "kl_mean", "kl_sem", "kl_median", "kl_p99", "kl_max", "top1")):
        for got, lines in zip(row[2:], all_of.values()):
            same(got.rstrip(" %"), lines[-1][key] * (100 if key == "top1" else 1), row[0])
    ranks = page.all("tr", inside=page.all("table", "ranks")[0])
    most = max(x[-1]["kl_mean"] for x in all_of.values())
    for row, (name, lines) in zip(ranks, all_of.items()):
        assert text(page.all("th", inside=row)[0]) == name
        assert abs(percent(page.all("i", inside=row)[0], "width") - 100 * lines[-1]["kl_mean"] / most) < 0.06
    figure = page.all("figure", inside=page.section("eval"))[0]
    for kind, lines in zip(("ours", "rtn", "gptq"), all_of.values()):
        check_histogram(page, figure, kind, lines[-1]["kl_histogram"]["counts"])
    with_layers = sum(len(x) > 1 for x in all_of.values())
    assert len([x for x in page.titles("i", "dot") if "up to layer" in x]) == 2 * with_layers * len(all_of["this run"])
    check_along(page, page.section("eval"), {name: lines[-1] for name, lines in all_of.items()})


# ---- the files beside the page ----

def check_data(path, made, table):
    run = json.load(open(path + "/settings.json"))
    lines = [x for i in range(run["layers"]) for x in read_notes("%s/s/codes-%d.fts" % (path, i))]
    got = json.load(open(made))
    assert got["settings"]["command"] == run["command"] and got["settings"]["text"] == os.path.basename(run["text"])
    assert "weights" not in got["settings"]
    assert abs(got["totals"]["loss"] / sum(x["loss"] for x in lines) - 1) < 1e-9
    rows = list(csv.DictReader(open(table, newline="")))
    assert len(got["modules"]) == len(rows) == len(lines)
    for x, a, b in zip(lines, got["modules"], rows):
        for key in ("module", "method", "order"):
            assert a[key] == b[key] == x[key]
        for key in ("loss", "loss_rtn", "seconds", "damping", "samples"):
            assert a[key] == float(b[key]) == x[key], (key, a, b)
        assert a["ratio"] == float(b["ratio"]) == x["loss"] / x["loss_rtn"] and a["kind"] == kind_of(x["module"]) == b["kind"]
        assert a.get("loss_gptq") == x.get("loss_gptq") == (float(b["loss_gptq"]) if b["loss_gptq"] else None)
        assert str(a.get("expert", "")) == b["expert"]
    want = [json.loads(x) for x in open(path + "/eval.jsonl")]
    for x, y in zip(want, got["evaluation"]):
        for key in ("kl_mean", "ppl", "top1", "tokens", "layer", "text_sha256", "kl_histogram", "by_position", "seqlen", "dtype"):
            assert x[key] == y[key], key
    for m in got.get("experts", []):
        for t in fts.read(open("%s/s/codes-%d.fts" % (path, m["layer"]), "rb")):
            if t.role == "hitmap":
                assert m["tokens"] == t.array()[:, 0].tolist() and m["output"] == t.array()[:, 4].tolist()


# ---- what a reader sees ----

def luminance(colour):
    """WCAG 2.2, relative luminance."""
    x = np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


def contrast(a, b):
    a, b = sorted((luminance(a), luminance(b)))
    return (b + 0.05) / (a + 0.05)


def colours(style):
    """{class: (background, text)} of cells, and the variables: light, dark."""
    full = lambda c: c if len(c) == 7 else "#" + "".join(2 * x for x in c[1:])
    at = [m.start() for m in re.finditer("prefers-color-scheme:dark", style)]
    parts = [style[:at[0]] + style[style.index("*{"):at[1]], style[at[0]:style.index("*{")] + style[at[1]:]]
    for part in parts:
        cells = {m[0]: (full(m[1]), full(m[2])) for m in
                 re.findall(r"\.([hk]\d+|none)\{background:(#\w+);fill:#\w+;color:(#\w+)\}", part)}
        yield cells, {m[0]: full(m[1]) for m in re.findall(r"--(\w+):(#\w+)", part)}


def check_layout(path):
    p = Page(path)
    light, dark = colours(p.style)
    cells = p.all("td", "cell")
    written = 0
    for shades, names in (light, dark):
        shades = {**light[0], **shades}
        assert len(shades) == 12 + 11 + 1
        for c in cells:
            written += bool(text(c))
            pair = shades[c.getAttribute("class").split()[1]]
            assert contrast(*pair) >= 4.5, "%s: %.2f" % (pair, contrast(*pair))
        for ink in ("ink", "soft"):
            for paper in ("bg", "panel"):
                assert contrast(names[ink], names[paper]) >= 4.5, (ink, paper)
        for mark in ("ink", "ours", "gptq", "rtn", "p2", "p3", "p4", "p5"):  # WCAG 1.4.11: graphics
            assert contrast(names[mark], names["bg"]) >= 3, mark
    assert written or not cells
    sizes = [float(x) for x in re.findall(r"font(?:-size)?:([\d.]+)px", p.style)]
    assert min(sizes) >= 11, sizes
    for svg in p.all("svg"):  # it stretches: marks only
        assert svg.getAttribute("preserveAspectRatio") == "none" and not p.all("text", inside=svg)
    for figure in p.all("figure"):
        assert text(p.all("p", "xname", figure)[0])
        if not has(figure, "heat") or p.all("svg", inside=figure):
            assert text(p.all("p", "yname", figure)[0])
            assert 1 < len(p.all("span", inside=p.all("div", "xaxis", figure)[0])) <= 12
            assert len(p.all("span", inside=p.all("div", "yaxis", figure)[0])) > 1
        if has(figure, "heat"):
            ends = [text(x) for x in p.all("span", inside=p.all("p", "scale", figure)[0])]
            assert ends[0] == "1/" + ends[2] if ends[0].startswith("1/") else float(ends[0]) < float(ends[1]), ends
    # a narrow window: five columns at most, or they scroll in a box of their own
    assert re.search(r"@media\(max-width:700px\)\{.*\.x\{display:none\}", p.style)
    for table in p.all("table"):
        row = [c for c in p.all("tr", inside=table)[0].childNodes if c.nodeName in ("th", "td")]
        boxed = has(table.parentNode, "wide") or has(table, "map")
        assert boxed or sum(not has(c, "x") for c in row) <= 5, [text(c) for c in row]
    for name in p.all("td", "name"):
        assert len(max(re.split("\n", "\n".join(text(n) if n.nodeType == n.TEXT_NODE else "" for n in p.all("code", inside=name)[0].childNodes)), key=len)) < 40


def table_after(page, title, inside):
    h3 = next(n for n in page.all("h3", inside=inside) if text(n) == title)
    n = h3.nextSibling
    while n.nodeName not in ("div", "details"):
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
    section, count = page.section("experts"), sum(len(m) for m in maps.values())
    cells = page.all("td", "cell", section) + page.all("rect", "cell", section)
    if count <= 4096:
        assert len(cells) == 2 * count, "%d cells" % len(cells)
        for c, column in zip((cells[:count], cells[count:]), (0, 4)):
            depths = {}
            for x in c:
                title = x.getAttribute("title") or text(x)
                i, e, v = re.match(r"layer (\d+), expert (\d+): (\S+) times the layer's mean", title).groups()
                m = maps[int(i)][:, column]
                ratio = m[int(e)] / m.mean()
                same(v, ratio, title)
                assert has(x, "none") == (ratio == 0)
                if ratio:
                    kind, depth = re.match(r"cell ([hk])(\d+)$", x.getAttribute("class")).groups()
                    depths[np.log(ratio)] = int(depth) * (1 if kind == "h" else -1)
            order = [depths[k] for k in sorted(depths)]
            assert order == sorted(order) and max(map(abs, order)) == 11, "the scale does not span the values: %s" % order
    else:
        paths = page.all("path", "cell", section)
        assert sum(p.getAttribute("d").count("M") for p in paths) == 2 * count, "cells as paths"
        assert len({p.getAttribute("class") for p in paths}) > 20
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
    assert "forge quantize '/m/it'\\''s' 'out put' --sequences 8" in p.text
    assert "2023-11-14 22:13 UTC" in p.text and "made-up, CPU level avx2" in p.text
    check_layout(page)
    check_heat(p, lines, layers)
    check_bars(p, lines)
    check_modules(p, lines)
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
elif sys.argv[1] == "data":
    check_data(*sys.argv[2:])
elif sys.argv[1] == "peers":
    check_peers(*sys.argv[2:])
elif sys.argv[1] == "peer":
    with open(sys.argv[2], "w") as f:
        json.dump(figures(float(sys.argv[3]), np.random.default_rng(int(sys.argv[4]))), f)
elif sys.argv[1] == "layout":
    check_layout(sys.argv[2])
elif sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
else:
    check(*sys.argv[2:])
