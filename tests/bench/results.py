"""Results of the benchmarks: rows, and how they become JSON, a Markdown table and a plot. Pure functions."""

import html
import json
import statistics


def row(part, work, who, values, unit="ms", note=""):
    """One line of the table: `work` as `who` does it. The first value of a part's warm-up is not among the values."""
    values = [float(v) for v in values]
    return {"part": part, "work": work, "who": who, "unit": unit, "n": len(values),
            "median": statistics.median(values), "min": min(values), "max": max(values), "note": note}


def from_report(part, work, who, figure, unit="ms", note=""):
    """A figure of a program's report that has median, min and max already."""
    return {"part": part, "work": work, "who": who, "unit": unit, "n": figure["n"], "median": figure["median"],
            "min": figure["min"], "max": figure["max"], "note": note}


def find(rows, part, work, who):
    for each in rows:
        if (each["part"], each["work"], each["who"]) == (part, work, who):
            return each
    return None


def ratio(rows, part, work, who, other):
    """How many times as long `who` takes as `other`; None when one of them is missing."""
    one, two = find(rows, part, work, who), find(rows, part, work, other)
    return one["median"] / two["median"] if one and two and two["median"] > 0 else None


def slower_by(base, again, new, allowed=None):
    """The share by which a new build's figure is above the base's, and whether that is too much: more than 2 % (`allowed`: so much,
    in the figure's unit) beyond the difference that two copies of the base show."""
    least = min(base, again)
    limit = 0.02 * least if allowed is None else allowed
    return (new - least) / least, new - max(base, again) > limit + abs(again - base)


def number(value):
    """About three digits."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def markdown(rows, about):
    lines = [f"{name}: {value}  " for name, value in about.items()]
    part = None
    for each in rows:
        if each["part"] != part:
            part = each["part"]
            lines += ["", f"### {part}", "", "| work | who | median | min | max | n | |", "| --- | --- | --- | --- | --- | --- | --- |"]
        unit = each["unit"]
        cells = [each["work"], each["who"], f"{number(each['median'])} {unit}", number(each["min"]), number(each["max"]),
                 str(each["n"]), each["note"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def to_json(rows, about, skipped):
    return json.dumps({"about": about, "rows": rows, "skipped": skipped}, indent=1) + "\n"


# ---- the plot ---------------------------------------------------------------------------------------------------

WIDTH, BAR, GAP, LEFT, RIGHT = 900, 16, 6, 330, 110
COLOURS = ("#2563a8", "#d97b29", "#5a9e5a", "#a05195", "#8c8c8c", "#c2444a", "#4aa5a5")


def colour_of(who, known):
    if who not in known:
        known[who] = COLOURS[len(known) % len(COLOURS)]
    return known[who]


def _text(x, y, text, anchor="start", size=12, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">'
            f"{html.escape(text)}</text>")


def svg(rows):
    """Bars of the times, a group per part and work, each group with a scale of its own; the lines are min and max."""
    timed = [r for r in rows if r["unit"] in ("ms", "us", "us/allocation")]
    groups = {}
    for each in timed:
        groups.setdefault((each["part"], each["work"], each["unit"]), []).append(each)
    known, shapes, y = {}, [], 10
    for (part, work, unit), members in groups.items():
        y += 16
        shapes.append(_text(10, y, f"{part}: {work}, {unit}", weight="bold"))
        y += 6
        longest = max(m["max"] for m in members) or 1.0
        scale = (WIDTH - LEFT - RIGHT) / longest
        for member in members:
            middle = y + BAR / 2
            shapes.append(_text(LEFT - 8, y + BAR - 4, member["who"], "end"))
            shapes.append(f'<rect x="{LEFT}" y="{y}" width="{max(1.0, member["median"] * scale):.1f}" height="{BAR}" '
                          f'fill="{colour_of(member["who"], known)}"/>')
            shapes.append(f'<line x1="{LEFT + member["min"] * scale:.1f}" y1="{middle}" '
                          f'x2="{LEFT + member["max"] * scale:.1f}" y2="{middle}" stroke="black"/>')
            shapes.append(_text(LEFT + member["max"] * scale + 6, y + BAR - 4, number(member["median"])))
            y += BAR + GAP
        y += 8
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
            f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(shapes) + "\n</svg>\n")
