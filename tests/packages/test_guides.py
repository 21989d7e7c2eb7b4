"""The documentation's commands: each of ours is one that the programs take, with its options, and each script is there."""
import os
import pathlib
import re
import shlex
import subprocess
import tempfile

import pytest

PROJECT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [*(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md", "tests/gpu/README.md")),
         *sorted(each for each in (PROJECT / "docs").glob("*.md"))]
USAGE = 2
# In the text a command may be spoken of, with what stands for others' words.
PLACEHOLDER = re.compile(r"[…\[\]|]|\.\.\.")


def blocks(text):
    """(line, text) of fenced blocks that are a shell's."""
    for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```", text, re.M | re.S):
        if found[2] in ("", "sh", "bash", "shell"):
            yield text.count("\n", 0, found.start(3)) + 1, found[3]


def commands(text):
    """(line, words, whether it is spoken of alone) of each simple command of the blocks, and of ours that the text names."""
    for line, block in blocks(text):
        joined = re.sub(r"\\\n", lambda _: " ", block)
        for at, each in enumerate(joined.splitlines()):
            # Not shlex's comments: a # within a word is none.
            each = re.sub(r"(^|\s)#.*", "", each)
            for simple in re.split(r"&&|\|\||[;|&](?!\d)", each):
                if simple.strip():
                    yield line + at, words_of(simple), False
    for found in re.finditer(r"`((?:sudo )?(?:amemctl|amemd|amem-holder) [^`\n]+)`", text):
        if not PLACEHOLDER.search(found[1]):
            yield text.count("\n", 0, found.start()) + 1, words_of(found[1]), True


def words_of(simple):
    try:
        words = shlex.split(simple)
    except ValueError:  # a here-document, or a quotation over several lines
        return []
    while words and (words[0] in ("sudo", "time", "exec", "env") or re.match(r"[A-Z_]+=", words[0])):
        words = words[1:]
    return [word for word in words if not re.match(r"[<>]|\d>", word)]


def run(*words):
    """In a folder of its own, since some commands write the file that they name."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, check=False, cwd=folder,
                              stdin=subprocess.DEVNULL, env={**os.environ, "AMEM_RUNTIME_DIR": "/nonexistent/amem"})


def fault_of_amemctl(build, words):
    """Nobody serves where it looks. What it would start is something harmless."""
    if "--" in words:
        words = [*words[:words.index("--")], "--", "true"]
    elif words[:1] in (["run"], ["doctor"], ["bench"]) and "--help" not in words:
        return None  # spoken of, or of the whole node
    if words[:1] == ["wait"] or words[:1] == ["--runtime-dir"] and words[2:3] == ["wait"]:  # it would wait for a broker
        words = [word for at, word in enumerate(words) if "--timeout" not in words[max(0, at - 1):at + 1]] + ["--timeout", "1ms"]
    done = run(build / "bin" / "amemctl", *[word for word in words if word != "--required"])
    return done.stderr.strip() if done.returncode == USAGE else None


def fault_of_amemd(build, words):
    done = run(build / "bin" / "amemd", *words, *([] if {"--help", "--version", "--check-config"} & set(words) else ["--check-config"]))
    # A file of the reader's own is not here.
    return done.stderr.strip() if done.returncode != 0 and "--config" not in words else None


def fault_of_holder(build, words):
    done = run(build / "bin" / "amem-holder", *words, "--help")
    return done.stderr.strip() if done.returncode != 0 else None


def fault_of_script(path, words):
    script = PROJECT / path
    if not script.exists():
        return f"there is no {path}"
    # A script's source has its options, whether it parses them itself or a library does.
    text = script.read_text(encoding="utf-8")
    text += "".join(each.read_text(encoding="utf-8") for each in script.parent.glob("*.py")) if script.suffix == ".sh" or "arg" in text else ""
    for option in (word.partition("=")[0] for word in words if re.match(r"--\w", word)):
        if option not in text:
            return f"{path} does not know {option}"
    return None


def fault_of_preset(words):
    presets = (PROJECT / "CMakePresets.json").read_text(encoding="utf-8")
    return next((f"there is no preset {name}" for option, name in zip(words, words[1:])
                 if option == "--preset" and f'"{name}"' not in presets), None)


def fault(build, words):
    name, rest = words[0], words[1:]
    if name in ("python3", "python", "bash") and rest and re.match(r"(\./)?(deploy|tests|client)/", rest[0]):
        name, *rest = rest
    ours = {"amemctl": fault_of_amemctl, "amemd": fault_of_amemd, "amem-holder": fault_of_holder}.get(name)
    if ours:
        return ours(build, rest)
    if re.match(r"(\./)?(deploy|tests)/", name):
        return fault_of_script(name, rest)
    return fault_of_preset(rest) if name in ("cmake", "ctest") else None


def faults(build, name, text):
    for line, words, spoken_of in commands(text):
        why = fault(build, words) if words else None
        # `amemctl pause` in a sentence is no command that lacks its group.
        if why and not (spoken_of and re.search(r"required|expects|either OUT and IN", why)):
            yield f"{name}:{line}: {' '.join(words)}: {why}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_commands_of_the_page(build, page):
    text = page.read_text(encoding="utf-8")
    assert not list(faults(build, page.name, text))


def test_wrong_ones_are_found(build):
    page = """
Say `amemctl pause --no-such-option train`, or `amemctl pause GROUP…`.
```
amemctl swap one   # which two?
sudo amemd --pool-size much &
amemctl run --group train --scop heap -- python3 train.py --any-option
deploy/no_such.sh && cmake --preset releas
tests/busy.sh 10; amemctl pause train
deploy/packages.sh --no-such
```
1. A step:
   ```
   amemctl resume --no-such
   ```
```toml
amemctl = "is no command here"
```
"""
    assert [each.partition(": ")[2].partition(":")[0] for each in faults(build, "page", page)] == [
        "amemctl swap one", "amemd --pool-size much", "amemctl run --group train --scop heap -- python3 train.py --any-option",
        "deploy/no_such.sh", "cmake --preset releas", "deploy/packages.sh --no-such", "amemctl resume --no-such", "amemctl pause --no-such-option train"]
