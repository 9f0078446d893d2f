#!/usr/bin/env python3
"""Is forge-report's page drawn in a real browser? Bars and map cells must have their colours at their places, light and dark.

report_check.py PAGE [WIDTH]     exit 77 without a browser (Debian: chromium; or CHROMIUM)
"""
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import PIL.Image

# Where each mark lies and what colour it has: what the browser's own layout says, to be found again in the picture.
PROBE = """<script>addEventListener("load", () => {
  const rgb = s => (s.match(/[0-9.]+/g) || []).map(Number), all = (q, e) => [...(e || document).querySelectorAll(q)];
  const shown = e => e.getClientRects().length, wide = document.documentElement.scrollWidth;
  const out = {height: document.documentElement.scrollHeight, overflow: wide - innerWidth,
               paper: rgb(getComputedStyle(document.body).backgroundColor), marks: [], small: [], over: [], cut: []};
  for (const [what, query] of [["cell", "td.cell"], ["bar", "i.bar"], ["share", "td.w i"], ["dot", "i.dot"], ["path", "path.cell"]])
    for (const e of all(query)) {
      const b = e.getBoundingClientRect(), s = getComputedStyle(e), box = e.closest(".rows");
      if (shown(e) && (!box || b.bottom < box.getBoundingClientRect().bottom))
        out.marks.push([what, b.x + scrollX, b.y + scrollY, b.width, b.height, rgb(what == "path" ? s.fill : s.backgroundColor)]);
    }
  for (const e of all("main *"))
    if (shown(e) && [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && parseFloat(getComputedStyle(e).fontSize) < 11)
      out.small.push(e.textContent);
  for (const axis of all(".xaxis, .yaxis")) {  // labels that touch
    const boxes = all("span", axis).filter(shown).map(e => e.getBoundingClientRect());
    for (let k = 1; k < boxes.length; k++) {
      const [a, b] = [boxes[k - 1], boxes[k]];
      if (a.left < b.right && b.left < a.right && a.top < b.bottom - 1 && b.top < a.bottom - 1) out.over.push(axis.textContent);
    }
  }
  for (const e of all("td, th, .tile b, .tile span, p, h1, h2, h3"))  // text wider than its place
    if (shown(e) && e.scrollWidth > e.clientWidth + 1) out.cut.push(e.textContent);
  // the script: by share, least first; back
  const heads = all(".sortable th"), share = heads.findIndex(e => e.textContent == "share");
  const column = () => all(".sortable tbody tr").map(r => r.cells[share].textContent);
  out.sorted = [column()];
  for (const times of [1, 1]) { heads[share].querySelector("button").click(); out.sorted.push(column()); }
  heads[0].querySelector("button").click();
  out.names = all(".sortable tbody tr").map(r => r.cells[0].textContent);
  const p = document.createElement("pre");
  p.id = "probe";
  p.textContent = JSON.stringify(out);
  document.body.appendChild(p);
});</script>"""


def browser():
    for name in (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and shutil.which(name):
            return name
    print("no browser: CHROMIUM=... or apt-get install chromium")
    sys.exit(77)


def run(home, *args):
    cmd = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1",
           "--host-resolver-rules=MAP * ~NOTFOUND", "--user-data-dir=%s" % home, *map(str, args)]
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    if r.returncode:
        sys.exit("the browser failed: " + r.stderr.decode()[-500:])
    return r.stdout.decode()


def png(path):
    return np.array(PIL.Image.open(path).convert("RGB"))


def place(mark):
    """A pixel of the mark that no text covers: the upper left of a cell, the middle of all else."""
    what, x, y, w, h = mark[:5]
    return (int(x + min(3, w / 2)), int(y + min(3, h / 2))) if what == "cell" else (int(x + w / 2), int(y + h / 2))


def covered(mark, later):
    """A dot, where a dot that is drawn later lies upon its middle."""
    return mark[0] == "dot" and any(m[0] == "dot" and np.hypot(m[1] - mark[1], m[2] - mark[2]) < 1 + m[3] / 2 for m in later)


def look(page, work, theme, width):
    flag = "--blink-settings=preferredColorScheme=%d" % (theme == "light")
    probe = work / "probe.html"
    probe.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    dom = run(work / "home", flag, "--window-size=%d,900" % width, "--dump-dom", "file://%s" % probe)
    found = json.loads(html.unescape(re.search(r'<pre id="probe">(.*?)</pre>', dom, re.S).group(1)))
    shot = work / ("%s.png" % theme)
    run(work / "home", flag, "--window-size=%d,%d" % (width, found["height"] + 200), "--screenshot=%s" % shot, "file://%s" % page)
    return found, png(shot)


def check(found, picture, theme):
    paper = np.array(found["paper"][:3])
    assert (paper.mean() > 200) == (theme == "light"), "paper is %s" % paper
    assert picture.shape[0] >= found["height"], "the picture is %s, the page %d high" % (picture.shape, found["height"])
    counts, colours = {}, set()
    for k, m in enumerate(found["marks"]):
        what = m[0]
        if what == "path" or m[3] < 2 or m[4] < 3 or covered(m, found["marks"][k + 1:]):
            continue
        x, y = place(m)
        got, want = picture[y, x].astype(int), np.array(m[5][:3])
        assert np.abs(got - want).max() <= 4, "%s: %s at %d,%d is %s, not %s" % (theme, what, x, y, got, want)
        counts[what] = counts.get(what, 0) + 1
        if what == "cell":
            colours.add(tuple(got))
    inked = (np.abs(picture[:found["height"]].astype(int) - paper).max(-1) > 24).mean()
    print("%s: %s, %d colours of cells, %.1f %% inked" % (theme, counts, len(colours), 100 * inked))
    assert counts.get("cell", 0) >= 12 and len(colours) >= 6, "cells: %s" % counts
    assert counts.get("bar", 0) >= 6 and counts.get("share", 0) >= 2, "bars: %s" % counts
    assert 0.02 < inked < 0.6
    return counts


def check_text(found):
    """All of it can be read, at this width of the window."""
    for what in ("small", "over", "cut"):
        assert not found[what], "%s: %s" % (what, found[what][:5])
    assert found["overflow"] <= 0, "the page is %d px wider than the window" % found["overflow"]


def check_sorting(found):
    worst, down, up = [[float(x) for x in s] for s in found["sorted"]]
    assert len(worst) > 6 and worst == sorted(worst, reverse=True) == down and up == sorted(up)
    key = lambda name: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", name)]
    assert found["names"] == sorted(found["names"], key=key), found["names"][:9]


def check_paths(found, picture):
    """Maps of thousands of cells are paths: their box must be full of many colours."""
    boxes = [m for m in found["marks"] if m[0] == "path"]
    for m in boxes[:1]:
        x, y, w, h = map(int, m[1:5])
        box = picture[y:y + h, x:x + w].reshape(-1, 3)
        colours, n = np.unique(box // 8, axis=0, return_counts=True)
        assert len(colours) > 12 and n.max() < 0.6 * n.sum(), "a map of paths has %d colours" % len(colours)
    return len(boxes)


def main():
    page, width = pathlib.Path(sys.argv[1]).resolve(), int((sys.argv[2:] or [1100])[0])
    browser()
    with tempfile.TemporaryDirectory() as d:
        work = pathlib.Path(d)
        for theme in ("light", "dark"):
            found, picture = look(page, work, theme, width)
            check(found, picture, theme)
            check_text(found)
            check_sorting(found)
            check_paths(found, picture)
        pdf = work / "page.pdf"
        run(work / "home", "--print-to-pdf=%s" % pdf, "file://%s" % page)
        assert pdf.read_bytes()[:5] == b"%PDF-" and pdf.stat().st_size > 10000


main()
