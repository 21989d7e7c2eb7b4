#!/usr/bin/env python3
"""Finds words and phrases that amem's pages and comments do not use, and says what to write instead.

proselint searches, with the list in words.txt and with some of its own checks. Without a FILE: the site's pages, the pages at the top of
the source tree, the folders' README.md, and the comments of the product's source files, without what not_yet.txt names. Exit status 0:
nothing found.
"""
from __future__ import annotations

import argparse
import ast
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Stands for what is not prose, such as code. No pattern matches it.
GAP = "¶"
# Of proselint's own checks: those about words, and the one that finds a word written twice.
ITS_OWN = ("archaism", "cliches", "hedging", "lexical_illusions", "malapropisms", "needless_variants", "nonwords", "redundancy",
           "uncomparables", "weasel_words")
# Records of the past. They grow, and nobody has to read them.
RECORDS = ("docs/history/", "docs/decisions/")
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
# The folders whose comments are read, and the names of the files that have them.
SOURCES = ("addons", "client", "common", "daemon", "proto", "shim")
C_LIKE = re.compile(r"\.(c|h|cpp|hpp|inc|cu|cuh|proto)(\.in)?$")
PYTHON = re.compile(r"\.py$")
# A comment or a literal of C++. What stands in a literal is no comment.
C_TOKEN = re.compile(r"""//(?P<line>(?:\\\n|[^\n])*)|/\*(?P<block>.*?)\*/|R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|"""
                     r"""(?<!\w)'(?:\\.|[^'\\\n])+'""", re.S)


def prose(text: str) -> str:
    """The page's prose, each word on its line. Blocks of code, inline code, comments and links' targets are gone."""
    lines: list[str] = []
    fence, code = "", True  # the fence that ends this block; whether an indented line would be code
    for line in text.split("\n"):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence or mark:
            if not fence:
                fence = mark[1] if mark else ""
            elif mark and line.strip() == mark[1] and mark[1].startswith(fence):
                fence = ""
            lines.append(GAP)
            code = True
        elif not line.strip() or code and re.match(r" {4}|\t", line):
            lines.append(GAP)
            code = True
        else:
            heading = line.startswith("#")
            lines.append(line + GAP if heading else line)
            code = heading
    kept = "\n".join(lines)

    def gap(found: re.Match[str]) -> str:
        return GAP + "\n" * found[0].count("\n")

    kept = re.sub(r"<!--.*?-->", gap, kept, flags=re.S)
    kept = re.sub(rf"(?<!`)(`+)(?!`)[^{GAP}]+?(?<!`)\1(?!`)", gap, kept)
    kept = re.sub(rf"!?\[([^\]{GAP}]*{GAP}?[^\]{GAP}]*)\]\([^)\s]*\)", r"\1", kept)
    kept = re.sub(r"<?\bhttps?://[^\s>)]+>?", GAP, kept)
    return re.sub(r"\*+|(?<!\w)_|_(?!\w)", "", kept)


def c_comments(text: str) -> Iterator[tuple[int, str]]:
    """(offset, text without its marks) of each comment of C++ or of a .proto file."""
    for found in C_TOKEN.finditer(text):
        if found["line"] is not None:
            yield found.start(), re.sub(r"^[/!]?<? ?", "", found["line"])
        elif found["block"] is not None:
            yield found.start(), re.sub(r"^[ \t]*\*+ ?", "", re.sub(r"^[*!]?<? ?", "", found["block"]), flags=re.M)


def python_comments(text: str) -> Iterator[tuple[int, str]]:
    """(offset, text without its marks) of each comment and each docstring."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield starts[token.start[0] - 1] + token.start[1], re.sub(r"^#[!:]? ?", "", token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node) is not None:
            whole = node.body[0]
            lines = text.split("\n")[whole.lineno - 1:whole.end_lineno]
            docstring = "\n".join(line[whole.col_offset:] for line in lines).lstrip("rR").replace('"""', "")
            # The names in a list of arguments or attributes.
            yield starts[whole.lineno - 1] + whole.col_offset, re.sub(r"^\s+\w+:(?=\s|$)", GAP, docstring, flags=re.M)


def comments(text: str, found: Iterator[tuple[int, str]]) -> str:
    """The text of the comments, each word on its line, as a page. Code, and names that only code has, are gaps."""
    lines = [GAP] * (text.count("\n") + 1)
    for at, comment in found:
        alone = not text[text.rfind("\n", 0, at) + 1:at].strip()
        for number, line in enumerate(comment.split("\n"), text.count("\n", 0, at)):
            # Code before a comment ends the comment above it.
            lines[number] = line.rstrip() if alone else f"{lines[number]} {line.rstrip()}"
            alone = True
    return re.sub(r"~?\w+(?:(?:::|->)~?\w+)+(?:\(\))?|\w+\(\)", GAP, "\n".join(lines))


def page_of(name: str, text: str) -> str:
    """What a reader reads of a file, as a page: the comments of a source file, all of another one."""
    if C_LIKE.search(name):
        return comments(text, c_comments(text))
    if PYTHON.search(name):
        return comments(text, python_comments(text))
    return text


def entries(text: str) -> dict[str, str]:
    """{pattern: what to write} of a list such as words.txt."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, arrow, instead = line.partition(" -> ")
        if not arrow:
            raise SystemExit(f"words.txt:{number}: no ' -> '")
        found[f"(?:{pattern.strip()})".replace(" ", r"\s+")] = instead.strip()
    return found


def names(text: str) -> list[str]:
    """The entries of a list such as not_yet.txt."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


class Linter:
    """proselint with our words."""

    def __init__(self, words: dict[str, str]) -> None:
        # Not at the top: what is above needs no proselint.
        from proselint.checks import __register__ as its_checks
        from proselint.registry import CheckRegistry
        from proselint.registry.checks import Check, CheckFlags
        from proselint.registry.checks.engine import Fancy
        from proselint.registry.checks.types import PreferredForms

        registry = CheckRegistry()
        registry.checks.clear()  # there is one in a process
        registry.register_many(its_checks)
        registry.register(Check(check_type=PreferredForms(items=words), engine=Fancy(), path="amem", message="{1} -> {0}",
                                flags=CheckFlags(allow_quotes=True)))
        self._config = {"max_errors": 100_000, "checks": {**dict.fromkeys(ITS_OWN, True), "amem": True}}

    def findings(self, name: str, text: str) -> list[str]:
        """FILE:LINE: PHRASE -> WHAT TO WRITE, of one page or source file."""
        from proselint.tools import LintFile
        file = LintFile(name, prose(page_of(name, text)) or GAP)
        # It puts a line break in front of the text.
        return [f"{name}:{file.content.count(chr(10), 0, each.check_result.span[0])}: {' '.join(each.check_result.message.split())}"
                for each in file.lint(self._config)]


def site_pages(root: pathlib.Path) -> list[str]:
    """The pages of the site that a reader reads, without records and without what a program makes."""
    pages = sorted(page.relative_to(root).as_posix() for page in (root / "docs").rglob("*.md"))
    return [page for page in pages if not page.startswith(RECORDS)] + ["CONTRIBUTING.md"]


def all_pages(root: pathlib.Path) -> list[str]:
    """What is read without a PAGE, those of not_yet.txt included."""
    decisions = sorted(page.relative_to(root).as_posix() for page in (root / "docs" / "decisions").glob("*.md"))
    folders = (page.relative_to(root).as_posix() for top in ("addons", "client", "common", "daemon", "deploy", "examples", "proto", "shim", "tests")
               for page in sorted((root / top).rglob("README.md")))
    return list(dict.fromkeys([*TOP, *site_pages(root), *decisions, *folders]))


def words_of(root: pathlib.Path, pages: list[str]) -> int:
    """As wc -w counts them."""
    return sum(len((root / page).read_text(encoding="utf-8").split()) for page in pages)


def sources(root: pathlib.Path, under: str) -> list[str]:
    """The source files in a folder, without tests. For one file: the file itself."""
    if (root / under).is_file() or not (root / under).exists():
        return [under]
    files = (file.relative_to(root).as_posix() for file in sorted((root / under).rglob("*")))
    return [file for file in files if (C_LIKE.search(file) or PYTHON.search(file)) and "/tests/" not in file]


def lint(root: pathlib.Path, files: list[str], words: dict[str, str]) -> Iterator[str]:
    linter = Linter(words)
    for file in files:
        path = root / file if (root / file).exists() else pathlib.Path(file)
        yield from linter.findings(file, path.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/prose/check.sh", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="only this page, source file or folder of source files, also of not_yet.txt")
    parser.add_argument("--words-at-most", type=int, metavar="N",
                        help="fail if the site's pages have more words: docs/ without history/ and decisions/, and CONTRIBUTING.md")
    parser.add_argument("--count", action="store_true", help="print the words of each of the site's pages")
    options = parser.parse_args()
    words = entries((HERE / "words.txt").read_text(encoding="utf-8"))
    waiting = {entry: sources(ROOT, entry) for entry in names((HERE / "not_yet.txt").read_text(encoding="utf-8"))}
    left_out = {file for files in waiting.values() for file in files}
    pages = [page for page in all_pages(ROOT) if page not in left_out]
    commented = [file for top in SOURCES for file in sources(ROOT, top) if file not in left_out]
    found = list(lint(ROOT, [file for each in options.files for file in sources(ROOT, each)] or pages + commented, words))
    for each in found:
        print(each)
    failed = bool(found)
    if not options.files:
        print(f"prose: {len(pages)} pages, comments of {len(commented)} files, {len(found)} findings; "
              f"{len(left_out)} files are not rewritten yet (tests/prose/not_yet.txt)")
        for entry, files in waiting.items():
            exists = (ROOT / entry).exists()
            if not exists or not list(lint(ROOT, files, words)):
                print(f"prose: {entry} {'has no findings' if exists else 'does not exist'}: take it out of tests/prose/not_yet.txt")
    site = site_pages(ROOT)
    total = words_of(ROOT, site)
    if options.count:
        for page in site:
            print(f"{words_of(ROOT, [page]):7} {page}")
        print(f"{total:7} all pages of the site")
    if options.words_at_most is not None and total > options.words_at_most:
        print(f"prose: the site's pages have {total} words, which is more than {options.words_at_most}")
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
