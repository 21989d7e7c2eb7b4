#!/usr/bin/env python3
"""Finds words and phrases that amem's pages do not use, and says what to write instead.

proselint searches, with the list in words.txt and with some of its own checks. Without a PAGE: the site's pages, the pages at the top of
the source tree, and the folders' README.md, without those that not_yet.txt names. Exit status 0: nothing found.
"""
from __future__ import annotations

import argparse
import pathlib
import re
import sys
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
        """FILE:LINE: PHRASE -> WHAT TO WRITE, of one page."""
        from proselint.tools import LintFile
        file = LintFile(name, prose(text) or GAP)
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


def lint(root: pathlib.Path, pages: list[str], words: dict[str, str]) -> Iterator[str]:
    linter = Linter(words)
    for page in pages:
        path = root / page if (root / page).exists() else pathlib.Path(page)
        yield from linter.findings(page, path.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/prose/check.sh", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="only these, also those of not_yet.txt")
    parser.add_argument("--words-at-most", type=int, metavar="N",
                        help="fail if the site's pages have more words: docs/ without history/ and decisions/, and CONTRIBUTING.md")
    parser.add_argument("--count", action="store_true", help="print the words of each of the site's pages")
    options = parser.parse_args()
    words = entries((HERE / "words.txt").read_text(encoding="utf-8"))
    waiting = names((HERE / "not_yet.txt").read_text(encoding="utf-8"))
    pages = options.pages or [page for page in all_pages(ROOT) if page not in waiting]
    found = list(lint(ROOT, pages, words))
    for each in found:
        print(each)
    failed = bool(found)
    if not options.pages:
        there = [page for page in waiting if (ROOT / page).exists()]
        clean = [page for page in there if not list(lint(ROOT, [page], words))]
        print(f"prose: {len(pages)} pages, {len(found)} findings; {len(there)} pages are not rewritten yet (tests/prose/not_yet.txt)")
        for page in clean + sorted(set(waiting) - set(there)):
            print(f"prose: {page} {'has no findings' if page in clean else 'does not exist'}: take it out of tests/prose/not_yet.txt")
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
