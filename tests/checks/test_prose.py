"""tests/prose: what the linter of pages and comments reads, finds and counts."""
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "prose"
sys.path.insert(0, str(FOLDER))

import lint  # noqa: E402

WORDS = lint.entries((FOLDER / "words.txt").read_text(encoding="utf-8"))


@pytest.fixture(name="check", scope="module")
def check_fixture(tmp_path_factory):
    """check(text, options): (exit status, output) of the linter on a page with this text."""
    page = tmp_path_factory.mktemp("prose") / "page.md"

    def check(text, *options):
        page.write_text(text, encoding="utf-8")
        done = subprocess.run([FOLDER / "check.sh", page, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        return done.returncode, done.stdout.replace(f"{page}:", "")

    if "could not fetch" in (said := check("A page.\n")[1]):
        pytest.skip(said)
    return check


def test_a_finding_names_line_phrase_and_what_to_write(check):
    assert check("# A page\nThey are mended.\n\nThe rank is\nto be ended.\n") == (
        1, "2: mended -> fix\n4: is to be -> must be, or the present tense\n")


def test_a_page_without_findings(check):
    assert check("# A page\namemd fixes this. The rank returns after about 40 ms.\n") == (0, "")


def test_words_that_are_written_twice(check):
    status, said = check("The rank waits for the\nthe broker.\n")
    assert status == 1 and said.startswith("1: ") and "the the" in said


def test_more_words_than_the_limit(check):
    status, said = check("A page.\n", "--words-at-most", "10")
    total = lint.words_of(ROOT, lint.site_pages(ROOT))
    assert (status, said) == (1, f"prose: the site's pages have {total} words, which is more than 10\n")
    assert check("A page.\n", "--words-at-most", str(total)) == (0, "")


@pytest.mark.parametrize("text", [
    "```\nmended\n```\n", "~~~sh\nmended\n```\nmended\n~~~\n", "Text.\n\n    mended\n", "# Head\n    mended\n", "Say `mended`.\n",
    "Say ``mended ` mended``.\n", "Say `mended\nmended`.\n", "[Page](mended.md#mended)\n", "| a | `mended` |\n", "<!-- mended\nmended -->\n",
    "See https://example.org/mended\n", "- item\n\n  ```\n  mended\n  ```\n"])
def test_what_is_not_prose(text):
    assert "mended" not in lint.prose(text)
    assert lint.prose(text).count("\n") == text.count("\n"), "so that lines keep their numbers"


@pytest.mark.parametrize("text", [
    "mended\n", "# mended\n", "- mended\n", "| mended | `a` |\n", "[mended](page.md)\n", "[`a` is mended](page.md)\n", "**mended**\n", "_mended_\n",
    "```\na\n```\nmended\n", "a line\n    mended\n"])
def test_what_is_prose(text):
    assert "mended" in lint.prose(text)


@pytest.mark.parametrize("name, text", [
    ("a.h", "// mended\n"), ("a.h", "/// mended\n"), ("a.cpp", "int a;  // mended\n"), ("a.cpp", "int a;  ///< mended\n"), ("a.h", "/* mended */\n"),
    ("a.h", "/*\n * mended\n */\n"), ("a.cpp", 'f("//");  // mended\n'), ("a.cpp", "int a = 1'000;  // it's mended\n"), ("a.proto", "// mended\n"),
    ("a.cu", "// mended\n"), ("a.inc", "// mended\n"), ("a.cpp", 'R"(")"; // mended\n'), ("a.py", "# mended\n"), ("a.py", "a = 1  # mended\n"),
    ("a.py", '"""mended"""\n'), ("a.py", 'def a():\n    """One.\n\n    mended\n    """\n')])
def test_what_is_a_comment(name, text):
    page = lint.prose(lint.page_of(name, text))
    assert "mended" in page
    assert text.split("\n").index(next(line for line in text.split("\n") if "mended" in line)) == page[:page.index("mended")].count("\n")


@pytest.mark.parametrize("name, text", [
    ("a.h", "int mended;\n"), ("a.cpp", 'f("// mended");\n'), ("a.cpp", 'f("a\\"// mended");\n'), ("a.cpp", 'f(R"x(\n// mended)x");\n'),
    ("a.cpp", "// `mended`\n"), ("a.cpp", "// mended::a, a::mended, a->mended and mended()\n"), ("a.cpp", "// mended_at\n"),
    ("a.h", "/// Use:\n///\n///     mended(1);\n"), ("a.py", 'a = "# mended"\n'), ("a.py", "a = 'mended'\n"),
    ("a.py", '"""One.\n\n    mended: two\n"""\n')])
def test_what_is_no_comment(name, text):
    page = lint.prose(lint.page_of(name, text))
    assert not re.search(r"\bmended\b", page)
    assert page.count("\n") == text.count("\n"), "so that lines keep their numbers"


def test_which_comments_are_one_text():
    assert len(matched(lint.page_of("a.h", "// is\n// to be\n"))) == 1
    assert len(matched(lint.page_of("a.h", "int a;  // is\n        // to be\n"))) == 1
    assert matched(lint.page_of("a.h", "// is\nint a;  // to be\n")) == []
    assert matched(lint.page_of("a.h", "int a;  // is\nint b;  // to be\n")) == []


def test_a_finding_in_a_comment(tmp_path):
    source = tmp_path / "a.cpp"
    source.write_text('#include <a>\n\n/// Says that\n/// likewise it ends.\nint a;\n', encoding="utf-8")
    done = subprocess.run([FOLDER / "check.sh", source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if "could not fetch" in done.stdout:
        pytest.skip(done.stdout)
    assert (done.returncode, done.stdout) == (1, f"{source}:4: likewise -> also, in the same way\n")


def matched(text):
    return [pattern for pattern in WORDS if re.search(rf"\b{pattern}\b", lint.prose(text), re.IGNORECASE)]


@pytest.mark.parametrize("text", [
    "Likewise, it ends.", "Nor does it end.", "The list, of\nwhich one is here.", "It takes some 40 ms.", "It takes some half an hour.",
    "It is no rank.", "Ranks are told of it.", "It waits as long as it lives.", "The user whom it serves.", "Whoever is to pause it.",
    "The rank [comes](a.md) back.", "as the page has it"])
def test_what_is_in_the_list(text):
    assert len(matched(text)) == 1


@pytest.mark.parametrize("text", [
    "There is no rank.", "It is no longer here.", "It is no faster than before.", "It takes twice as long as that.", "Some ranks wait.", "It is `here` to be used.",
    "A list is\n\nto be", "| is | to be |", "# This is\nto be"])
def test_what_is_not_in_the_list(text):
    assert matched(text) == []


def test_the_lists_are_in_order():
    for instead in WORDS.values():
        assert instead
    waiting = lint.names((FOLDER / "not_yet.txt").read_text(encoding="utf-8"))
    assert waiting == sorted(set(waiting))


def test_which_comments_are_read():
    files = [file for top in lint.SOURCES for file in lint.sources(ROOT, top)]
    assert {"common/sparse.h", "client/include/amem/amem.h", "client/python/amem/messages.py", "proto/amem/v1/broker.proto", "shim/kernels/sparse.cu",
            "shim/copies/ptx.cpp.in"} <= set(files)
    assert not [file for file in files if "/tests/" in file or file.endswith(".md")]


def test_which_pages_are_read():
    pages = lint.all_pages(ROOT)
    assert {"README.md", "CONTRIBUTING.md", "docs/index.md", "docs/decisions/elf-reader.md", "tests/prose/README.md"} <= set(pages)
    assert not [page for page in pages if page.startswith(("docs/history/", "build/"))]
    counted = lint.site_pages(ROOT)
    assert {"docs/index.md", "CONTRIBUTING.md"} <= set(counted) and "README.md" not in counted
    assert not [page for page in counted if page.startswith(("docs/history/", "docs/decisions/"))]
