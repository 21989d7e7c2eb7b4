#!/usr/bin/env python3
"""Draws the figures of docs/figures/figures.json as SVGs in its folder. With --check it names the figures that are out of date.

Each figure has groups of bars. All bars of a figure have one scale, which begins at 0. A picture has its own background, in light and
dark mode, and its figures as text for readers that see no picture.
"""
import html
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs" / "figures"
WIDTH, LEFT, RIGHT, BAR, STEP = 760, 220, 120, 16, 22
STYLE = """\
svg{font:13px system-ui,sans-serif}text{fill:#1b1f24}.paper{fill:#fff}.faint{fill:#57606a}
.title{font-size:15px;font-weight:600}.group,.strong{font-weight:600}
rect.amem{fill:#1f6feb}rect.peer{fill:#bf5b04}rect.copy{fill:#6e7781}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#15191f}.faint{fill:#9aa5b1}
rect.amem{fill:#4c9aff}rect.peer{fill:#f0883e}rect.copy{fill:#8b949e}}"""


def source(group):
    """Where the figures of a group come from: the machine, the date and, where all bars have the same, the run."""
    runs = {bar["run"] for bar in group["bars"]}
    return ", ".join([group["machine"], group["date"], *(runs if len(runs) == 1 else ())])


def figure_of(bar, group):
    """A bar's figure, with its run where the bars of the group are of several."""
    several = len({each["run"] for each in group["bars"]}) > 1
    return f"{bar['ms']:g} ms" + (f" ({bar['run']})" if several else "")


def text(x, y, content, kind=None, anchor=None):
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:g}" y="{y:g}"{attributes}>{html.escape(content, quote=False)}</text>'


def draw(figure):
    longest = max(bar["ms"] for group in figure["groups"] for bar in group["bars"])
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts, y = [text(16, 28, figure["title"], "title")], 40
    for group in figure["groups"]:
        y += 20
        parts.append(text(16, y, group["title"], "group"))
        parts.append(text(WIDTH - 16, y, source(group), "faint", "end"))
        y += 8
        for bar in group["bars"]:
            width = max(1.0, bar["ms"] * scale)
            strong = "strong" if bar["kind"] == "amem" else None
            parts.append(text(LEFT - 8, y + BAR - 3, bar["label"], strong, "end"))
            parts.append(f'<rect class="{bar["kind"]}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
            parts.append(text(round(LEFT + width + 6, 1), y + BAR - 3, figure_of(bar, group), strong))
            y += STEP
        y += 4
    height = y + 8
    described = " ".join(
        f"{group['title']} ({source(group)}): " + ", ".join(f"{bar['label']} {figure_of(bar, group)}" for bar in group["bars"]) + "."
        for group in figure["groups"])
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title figures">\n'
            f'<title id="title">{html.escape(figure["title"], quote=False)}</title>\n'
            f'<desc id="figures">{html.escape(described, quote=False)}</desc>\n<style>\n{STYLE}\n</style>\n'
            f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>\n' + "\n".join(parts) + "\n</svg>\n")


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__.strip())
    different = []
    for figure in json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))["figures"]:
        picture, drawn = FOLDER / figure["file"], draw(figure)
        if sys.argv[1:]:
            if not picture.exists() or picture.read_text(encoding="utf-8") != drawn:
                different.append(picture.name)
        else:
            picture.write_text(drawn, encoding="utf-8")
    if different:
        sys.exit(f"draw_figures.py draws {', '.join(different)} in another way. Run it")


if __name__ == "__main__":
    main()
