"""The documentation as a site: it builds, every link inside it leads somewhere, and one that does not is found."""
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINKS = ROOT / "deploy" / "site" / "links.py"
CANNOT = 77


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = tmp_path_factory.mktemp("site") / "site"
    built = subprocess.run([ROOT / "deploy" / "site.sh", made], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    if built.returncode == CANNOT:
        pytest.skip(built.stdout)
    assert built.returncode == 0, built.stdout
    return made


def links(folder):
    return subprocess.run([sys.executable, "-B", LINKS, folder], stdout=subprocess.PIPE, text=True, timeout=60)


def test_every_page_is_there_and_can_be_found(site):
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert {page.with_suffix(".html") for page in pages} <= {page.relative_to(site) for page in site.rglob("*.html")}
    named = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert {str(page) for page in pages} - named == set()
    assert "amem_pause" in (site / "reference" / "c.html").read_text(encoding="utf-8")
    assert "PauseRequest" in (site / "reference" / "grpc.html").read_text(encoding="utf-8")


def test_the_python_api_has_what_programs_can_use(site):
    text = (site / "reference" / "python.html").read_text(encoding="utf-8")
    documented = set(re.findall(r'<h[34] id="(amem\.[\w.]+)"', text))
    package = ROOT / "client" / "python" / "amem"

    def source(name):
        return (package / name).read_text(encoding="utf-8")

    names = re.findall(r'"(\w+)"', source("__init__.py").split("__all__ = [")[1].split("]")[0])
    assert len(names) > 20 and set(names) - {name.split(".")[-1] for name in documented} == {"__version__"}, "the build makes the version"
    for module, kind in (("broker", "Broker"), ("cluster", "Cluster"), ("ray/_cluster", "Cluster"), ("aio/_broker", "Broker"),
                         ("aio/_cluster", "Cluster")):
        body = source(f"{module}.py").split(f"\nclass {kind}:\n")[1].split("\nclass ")[0]
        methods = re.findall(r"^    (?:async )?def ([a-z]\w*)\(", body, re.MULTILINE)
        where = f"amem.{module.replace('/', '.')}.{kind}"
        assert "swap" in methods and {f"{where}.{name}" for name in methods} <= documented
    messages = re.findall(r"^class (\w+)", source("messages.py"), re.MULTILINE)
    assert "GroupInfo" in messages and {f"amem.messages.{name}" for name in messages} <= documented
    assert "keeps every address" in text, "with what the docstrings say"
    assert re.search(r"<td><code>.*paused.*</code></td>\s*<td>(.|\n){,200}so the rank cannot close it", text), "with the fields of messages"


def section(site, page, anchor):
    """From that heading to the next one."""
    text = (site / page).read_text(encoding="utf-8")
    return re.split(r"<h[1-6] ", text[text.index(f'id="{anchor}"'):])[0]


def test_lists_are_lists(site):
    steps = section(site, "getting-started.html", "from-a-wheel")
    ordered, _, after = steps.partition("</ol>")
    assert ordered.count("<li>") == 2 and ordered.count("<pre>") == 2, "the commands are within their steps"
    assert after.count("<ul>") == 1, "another list follows"


def test_lists_as_pages_have_them_and_as_python_markdown_reads_them():
    pytest.importorskip("mkdocs")
    sys.path.insert(0, str(LINKS.parent))
    from hooks import lists
    assert lists("Text:\n- a\n  b\n  - c\n- d\n") == "Text:\n\n- a\n    b\n    - c\n- d\n"
    assert lists("1. a\n   ```\n   b\n     c\n   ```\n2. d\n\n   e\n\nText\n") == (
        "1. a\n\n    ```\n    b\n      c\n    ```\n\n2. d\n\n    e\n\nText\n")
    assert lists("```\na\n```\n| b |\n| --- |\n") == "```\na\n```\n\n| b |\n| --- |\n"
    assert lists("- a\n  | b |\n  | --- |\n") == "- a\n\n    | b |\n    | --- |\n"
    for text in ("```\n- a\nb\n```\n", "# Head\nText\ngoes on\n\n| a |\n| --- |\n| - b |\n", "- a\n- b\n\nText\n", "In the year\n2026. Text\n"):
        assert lists(text) == text


def test_versions_beside_each_other(site, tmp_path):
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    for each in ("0.0.9", "0.0.10"):
        (tmp_path / each).mkdir()
        (tmp_path / each / "index.html").touch()
    (tmp_path / "pictures").mkdir()
    subprocess.run([ROOT / "deploy" / "site.sh", "--versions", tmp_path], check=True, timeout=120)
    listed = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert [(each["version"], each["aliases"]) for each in listed] == [(version, ["latest"]), ("0.0.10", []), ("0.0.9", [])]
    assert f"{version}/index.html" in (tmp_path / "index.html").read_text(encoding="utf-8")
    shows = '"provider": "mike"'
    assert shows in (tmp_path / version / "index.html").read_text(encoding="utf-8")
    assert shows not in (site / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / version / "search" / "search_index.json").exists()


def public_modules():
    """The names of the package's modules that programs and frameworks import."""
    package = ROOT / "client" / "python" / "amem"
    for path in sorted(package.rglob("*.py")):
        parts = ("amem", *path.relative_to(package).with_suffix("").parts)
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            yield ".".join(parts)


def test_the_python_api_has_every_public_module(site):
    modules = set(public_modules())
    assert {"amem", "amem.aio", "amem.daemon", "amem.frameworks.phases", "amem.ray", "amem.sglang", "amem.verl"} <= modules
    text = (site / "reference" / "python.html").read_text(encoding="utf-8")
    documented = set(re.findall(r'<h2 id="(amem[\w.]*)"', text))
    assert modules - documented == set(), "deploy/site/python.md lacks them"
    for name in ("amem.sglang.register", "amem.verl.Verl", "amem.vllm._worker.Worker.sleep", "amem._saver.TorchMemorySaver.region"):
        assert f'id="{name}"' in text


@pytest.mark.parametrize("link, why", [("nowhere.html", "no such file"), ("index.html#nothing-of-that-name", "no such anchor")])
def test_a_broken_link_is_found(site, tmp_path, link, why):
    copy = shutil.copytree(site, tmp_path / "site")
    (copy / "more.html").write_text(f'<a href="{link}">x</a>', encoding="utf-8")
    found = links(copy)
    assert found.returncode == 1
    assert found.stdout == f"more.html: {link}: {why}\n"


def test_a_table_that_is_shown_as_text_is_found(tmp_path):
    table = "| a | b |\n| --- | --- |\n"
    (tmp_path / "page.html").write_text(f"<p>{table}</p><pre><code>{table}</code></pre>", encoding="utf-8")
    found = links(tmp_path)
    assert found.returncode == 1
    assert found.stdout == "page.html: | a | b |: a table that is shown as text\n"


def test_no_site_is_no_success(tmp_path):
    assert links(tmp_path).returncode == 1
