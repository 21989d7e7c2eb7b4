"""The manual pages say all that the programs say of themselves."""
import gzip
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

DEMO = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "try.py"
COMMANDS = ("run", "wait", "pause", "resume", "swap", "prepare", "policy", "stage", "lease", "ready", "advise", "status", "groups", "ranks", "allocations", "top", "watch",
            "turns", "history", "quotas", "metrics", "health", "upgrade", "version", "doctor", "bench")
PAGES = {"amemd.8": [["amemd"]], "amem-holder.8": [["amem-holder"]], "amem-checkpoint.8": [["amem-checkpoint"]], "amemctl.1": [["amemctl"], *(["amemctl", command] for command in COMMANDS)],
         "amem-demo.1": [["amem-demo"]]}


def plain(page):
    """The page's text without its markup."""
    text = gzip.decompress(page.read_bytes()).decode()
    return re.sub(r"\s+", " ", re.sub(r"\\f.|(?m:^\.[A-Z]{2}\b)", "", text).replace("\\-", "-").replace("\\&", "").replace("\\(aq", "'")).replace('"', "")


@pytest.mark.parametrize("page", PAGES)
def test_every_option_is_in_the_page(build, run, page):
    text = plain(build / "deploy" / "man" / f"{page}.gz")
    for program, *command in PAGES[page]:
        started = [sys.executable, "-B", DEMO] if program == "amem-demo" else [build / "bin" / program]
        said = run(*started, *command, "--help")
        options = re.findall(r"(?m)^  (?:-\w,\s*)?(--[a-z-]+)", said)
        assert "--help" in options
        # Of a command only its own section counts: others have options of the same name.
        part = re.split(r"amemctl ([a-z-]+) \[OPTIONS\]", text)
        part = part[part.index(command[0]) + 1] if command else text
        for option in options:
            if command and option == "--help":
                continue
            assert re.search(rf"{option}(?![a-z-])", part), f"{page} has no {option} of {' '.join([program, *command])}"


def test_every_command_is_in_the_page(build, run):
    listed = run(build / "bin" / "amemctl", "--help").partition("Jobs:\n")[2].partition("Where the broker is:")[0]
    assert tuple(re.findall(r"(?m)^  ([a-z-]+)", listed)) == COMMANDS


def test_the_example_of_every_command_is_in_the_page(build, run):
    text = plain(build / "deploy" / "man" / "amemctl.1.gz")
    for command in COMMANDS:
        example = re.search(r"Example:\n  (.*)", run(build / "bin" / "amemctl", command, "--help"))[1]
        assert f"Example: {example}" in text, f"the page has no {example}"


@pytest.mark.parametrize("page, values", [
    ("amem-holder.8", ["--socket PATH the socket for amemd; amem-holder makes its directory if it is missing. Required", "--log-format TEXT:{text,json}=text"]),
    ("amem-checkpoint.8", ["amem-checkpoint [OPTIONS] ACTION PID", "{state,lock,checkpoint,restore,unlock}", "--timeout-ms N=0"]),
    ("amemctl.1", ["--tag TAG ... Only memory with one of these tags; the group continues to run. Not with --except",
                   "POLICY:{keep,discard} keep: copy to the pool", "instead of a socket. Environment variable: AMEM_ADDRESS",
                   "amemctl swap [OPTIONS] GROUP... Pause one group", "Write the command, with its own options, after --.", "126, 127 run: cannot execute the command"]),
])
def test_a_page_says_what_an_option_takes(build, page, values):
    text = plain(build / "deploy" / "man" / f"{page}.gz")
    for value in values:
        assert value in text


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_its_sections(build, page):
    text = gzip.decompress((build / "deploy" / "man" / f"{page}.gz").read_bytes()).decode()
    name = page.partition(".")[0]
    assert re.search(rf"^\.TH {name.upper()} ", text, re.MULTILINE | re.IGNORECASE), text[:500]
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", '"EXIT STATUS"', "EXAMPLES", '"SEE ALSO"'):
        assert f"\n.SH {heading}\n" in text, f"{page} has no {heading}"
    assert str(build) not in text, f"{page} names the folder that it was built in"


def test_every_setting_is_in_its_page(build, run, tmp_path):
    """Each key that amemd has, in the section of its table, with its variable. The example is one that amemd takes."""
    text = gzip.decompress((build / "deploy" / "man" / "amemd.toml.5.gz").read_bytes()).decode()
    settings = tomllib.loads(run(build / "bin" / "amemd", "--check-config", "--runtime-dir", tmp_path / "run"))
    parts = dict(re.findall(r"(?ms)^\.SS (.+?)$(.*?)(?=^\.S[SH])", text))
    tables = {'"Outside of a table"': {key: value for key, value in settings.items() if not isinstance(value, dict)},
              **{f"[{key}]": value for key, value in settings.items() if isinstance(value, dict)}}
    assert set(parts) == set(tables)
    for table, keys in tables.items():
        assert re.findall(r"(?m)^\.TP\n\\fB(\w+)\\fR$", parts[table]) == list(keys), table
        for key in keys:
            name = "_".join(["AMEM", *[table.strip("[]").upper()] * table.startswith("["), key.upper()])
            assert f"Variable {name}, option" in parts[table]
    example = re.search(r"(?s)\.EX\n(\[pool\].*?)\.EE", text)[1]
    file = tmp_path / "amemd.toml"
    file.write_text(example)
    assert 'size = "512GiB"' in run(build / "bin" / "amemd", "--check-config", "--config", file)


@pytest.mark.skipif(shutil.which("man") is None, reason="no man here")
@pytest.mark.parametrize("page", [*PAGES, "amemd.toml.5"])
def test_man_reads_the_page_without_a_warning(build, page, tmp_path):
    file = tmp_path / page
    file.write_bytes(gzip.decompress((build / "deploy" / "man" / f"{page}.gz").read_bytes()))
    said = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stderr) == (0, ""), said.stderr
