"""CHANGELOG.md becomes a changelog as Debian's tools read it."""
import gzip
import os
import pathlib
import shutil
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()
RELEASED = "# Changes\n\n## [Unreleased]\n\n## [2.1.0] - 2030-02-03\n### Added\n- One thing,\n  told in two lines.\n- Another.\n\n## [2.0.0] - 2029-01-01\n- First.\n"


@pytest.fixture
def convert(run, tmp_path):
    def convert(changelog, status=0):
        """What it says on the way, and the text that it makes."""
        output = tmp_path / "changelog.gz"
        said = run(sys.executable, "-B", ROOT / "deploy" / "packages" / "changelog.py", "--revision", "1~deb12", "--maintainer", "A <a@b.c>",
                   changelog, output, status=status, env={**os.environ, "SOURCE_DATE_EPOCH": "86400"})
        return said, gzip.decompress(output.read_bytes()).decode() if status == 0 else ""

    return convert


@pytest.mark.skipif(not shutil.which("dpkg-parsechangelog"), reason="needs dpkg-parsechangelog (Debian: dpkg-dev)")
def test_ours_is_of_this_version(run, convert, tmp_path):
    text = convert(ROOT / "CHANGELOG.md")[1]
    (tmp_path / "changelog").write_text(text)
    read = run("dpkg-parsechangelog", "-l", tmp_path / "changelog")
    assert f"Version: {VERSION}-1~deb12\n" in read and "Source: amem\n" in read and "dpkg-parsechangelog: warning" not in read, read


def test_each_version_has_its_date_and_its_items(convert, tmp_path):
    (tmp_path / "CHANGELOG.md").write_text(RELEASED)
    (tmp_path / "VERSION").write_text("2.1.0\n")
    text = convert(tmp_path / "CHANGELOG.md")[1]
    assert text == (
        "amem (2.1.0-1~deb12) stable; urgency=medium\n\n  * One thing, told in two lines.\n  * Another.\n\n"
        " -- A <a@b.c>  Sun, 03 Feb 2030 12:00:00 +0000\n\n"
        "amem (2.0.0-1~deb12) stable; urgency=medium\n\n  * First.\n\n -- A <a@b.c>  Mon, 01 Jan 2029 12:00:00 +0000\n\n")


def test_what_comes_after_the_section_of_the_same_version_joins_it(convert, tmp_path):
    (tmp_path / "CHANGELOG.md").write_text(RELEASED.replace("## [Unreleased]\n", "## [Unreleased]\n### Fixed\n- Since then.\n"))
    (tmp_path / "VERSION").write_text("2.1.0\n")
    text = convert(tmp_path / "CHANGELOG.md")[1]
    assert text.count("amem (2.1.0-1~deb12)") == 1 and text.index("* Since then.") < text.index("* One thing") < text.index("amem (2.0.0-")
    assert "Fri, 02 Jan 1970" in text, "not released yet: the date of the build"


def test_a_version_that_nobody_has_described_is_refused(convert, tmp_path):
    (tmp_path / "CHANGELOG.md").write_text(RELEASED)
    (tmp_path / "VERSION").write_text("2.2.0\n")
    said, _ = convert(tmp_path / "CHANGELOG.md", status=1)
    assert "2.1.0" in said and "2.2.0" in said
