"""The pictures of docs/figures are what deploy/draw_figures.py makes of figures.json, whose figures are those of the pages."""
import importlib.util
import json
import pathlib
import re
import xml.etree.ElementTree as xml

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "figures"
FIGURES = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))["figures"]
PAGES = {page: page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")}
MEASURED = "\n".join(text for page, text in PAGES.items() if page.name.startswith(("benchmarks", "versions")))
SVG = "{http://www.w3.org/2000/svg}"

_spec = importlib.util.spec_from_file_location("draw_figures", ROOT / "deploy" / "draw_figures.py")
draw_figures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw_figures)


def entries(figure):
    return [(group, bar) for group in figure["groups"] for bar in group["bars"]]


def test_there_is_one_picture_for_each_figure():
    assert {picture.name for picture in FOLDER.glob("*.svg")} == {figure["file"] for figure in FIGURES}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each["file"])
def test_the_picture_is_what_the_script_draws(figure):
    assert (FOLDER / figure["file"]).read_text(encoding="utf-8") == draw_figures.draw(figure), "run deploy/draw_figures.py"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each["file"])
def test_each_entry_has_its_source_and_is_on_a_page(figure):
    for group, bar in entries(figure):
        assert group["machine"] and group["measured_by"] and bar["run"]
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", group["date"])
        assert re.search(rf"(?<![\d.,]){re.escape(format(bar['ms'], 'g'))}(?![\d]|[.,]\d)", MEASURED), f"{bar['ms']} is on no page"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each["file"])
def test_whoever_sees_no_picture_has_its_figures_as_text(figure):
    root = xml.fromstring(draw_figures.draw(figure))
    described = root.find(f"{SVG}desc").text
    assert root.get("role") == "img" and root.find(f"{SVG}title").text == figure["title"]
    assert all(f"{bar['label']} {bar['ms']:g} ms" in described for _, bar in entries(figure))
    alternatives = [" ".join(alternative.split()) for text in PAGES.values()
                    for alternative, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text) if target.endswith(f"figures/{figure['file']}")]
    assert alternatives and set(alternatives) == {figure["alt"]}, "a page shows the picture, with the text that figures.json has"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each["file"])
def test_bars_are_as_long_as_their_figures(figure):
    root = xml.fromstring(draw_figures.draw(figure))
    bars = [each for each in root.iter(f"{SVG}rect") if each.get("class") != "paper"]
    wide = [float(each.get("width")) for each in bars]
    for (_, bar), width in zip(entries(figure), wide, strict=True):
        longest = max(other["ms"] for _, other in entries(figure))
        assert width == pytest.approx(max(1.0, bar["ms"] / longest * max(wide)), abs=0.1)
    assert all(float(each.get("x")) + float(each.get("width")) <= draw_figures.WIDTH for each in bars)


def test_both_modes_have_colours_of_their_own():
    light, dark = draw_figures.STYLE.split("@media(prefers-color-scheme:dark)")
    for kind in ("text", ".paper", ".faint", "rect.amem", "rect.peer", "rect.copy"):
        colours = [re.search(rf"{re.escape(kind)}{{fill:(#\w+)}}", style).group(1) for style in (light, dark)]
        assert colours[0] != colours[1], kind
