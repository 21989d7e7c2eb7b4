#!/usr/bin/env python3
"""Draws a trace of `amemctl --trace` as an SVG, for the documentation: draw_trace.py TRACE.json >PICTURE.svg

A row for each lane; a slice that lies in another one of its lane is drawn into it, smaller.
"""
import html
import json
import sys

WIDTH, LEFT, ROW, GAP, TOP = 1100, 290, 22, 4, 30
COLORS = {"pause": "#dfe7f5", "resume": "#e3f1e3", "quiesce": "#c7b9e8", "save": "#7fa8e0", "release": "#e0a36f", "drop": "#c98686",
          "admit": "#c9c97f", "create": "#b7a16a", "map+load": "#79b98c", "map": "#9fd0ad", "load": "#79b98c", "open": "#8fc7c7",
          "copy": "#3f74b8", "turn": "#d9d9d9", "agree": "#d9d9d9"}


def read(path):
    """Slices by lane, lanes by process, and the names of both."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {(each["pid"], each["tid"] if each["name"] == "thread_name" else None): each["args"]["name"]
             for each in events if each["ph"] == "M" and each["name"] in ("process_name", "thread_name")}
    lanes = {}
    for each in sorted((each for each in events if each["ph"] == "X"), key=lambda e: (e["pid"], e["tid"], e["ts"], -e["dur"])):
        lanes.setdefault((each["pid"], each["tid"]), []).append(each)
    return names, lanes


def depths(slices):
    """Each slice with how many of its lane it lies in."""
    open_until = []
    for each in slices:
        while open_until and each["ts"] >= open_until[-1]:
            open_until.pop()
        yield each, len(open_until)
        open_until.append(each["ts"] + each["dur"])


def step(span_us):
    """Between two marks of the axis: some ten of them."""
    size = 1
    while span_us / size > 12:
        size *= 2 if str(size)[0] in "15" else 2.5
    return int(size)


def time_text(us):
    return f"{us / 1000:g} ms"


def draw(names, lanes):
    begin = min(each["ts"] for lane in lanes.values() for each in lane)
    span = max(each["ts"] + each["dur"] for lane in lanes.values() for each in lane) - begin
    scale = (WIDTH - LEFT - 10) / span
    parts, y, process = [], TOP, None
    for key, slices in lanes.items():
        if key[0] != process:
            process = key[0]
            y += 14
            parts.append(f'<text x="4" y="{y}" font-weight="bold">{html.escape(names[process, None])}</text>')
            y += 6
        parts.append(f'<text x="14" y="{y + 15}">{html.escape(names[key])}</text>')
        for each, depth in depths(slices):
            x, width = LEFT + (each["ts"] - begin) * scale, max(each["dur"] * scale, 0.6)
            inset = 3 * depth
            title = f'{each["name"]}, {time_text(each["dur"])}'
            parts.append(f'<g><title>{html.escape(title)}</title><rect x="{x:.1f}" y="{y + inset}" width="{width:.1f}" '
                         f'height="{ROW - 2 * inset}" fill="{COLORS.get(each["name"], "#b0b8c4")}"/>')
            inside = any(other is not each and other["ts"] >= each["ts"] and other["ts"] + other["dur"] <= each["ts"] + each["dur"]
                         for other in slices)
            if width > 7 * len(each["name"]) and not inside:
                parts.append(f'<text x="{x + 3:.1f}" y="{y + 15}">{html.escape(each["name"])}</text>')
            parts.append("</g>")
        y += ROW + GAP
    marks = []
    for us in range(0, int(span) + 1, step(span)):
        x = LEFT + us * scale
        if x > WIDTH - 50:  # no space for its text
            break
        marks.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{y}" stroke="#ddd"/>'
                     f'<text x="{x + 2:.1f}" y="{TOP - 10}" fill="#666">{time_text(us)}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 6}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="{WIDTH}" height="{y + 6}" fill="white"/>\n' + "\n".join(marks + parts) + "\n</svg>\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    sys.stdout.write(draw(*read(sys.argv[1])))


if __name__ == "__main__":
    main()
