"""tests/nightly.sh, with steps of this test: what runs again and what does not, what ends with it, what it says. And its own steps: each names
what exists."""
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = "tests/nightly.sh"
PATIENCE = 60


class Checkout:
    """A checkout with steps of its own. Each step that runs writes a line to `ran`, outside of it."""

    def __init__(self, folder):
        self.folder, self.ran, self.kept = folder / "checkout", folder / "ran", folder / "what is kept & more"
        (self.folder / "tests").mkdir(parents=True)
        self.ran.touch()
        (self.folder / ".gitignore").write_text("/build/\n")

    def steps(self, **commands):
        table = "".join(f"{name} 60s echo {name} >>{self.ran}; {command}\n" for name, command in {"build": "true", **commands}.items())
        text, count = re.subn(r"(?ms)(<<'END_OF_STEPS'\n).*?(^END_OF_STEPS$)", lambda found: found[1] + table + found[2], (ROOT / SCRIPT).read_text())
        assert count == 1
        (self.folder / SCRIPT).write_text(text)
        (self.folder / SCRIPT).chmod(0o755)
        self.git("init", "-q")
        self.commit()
        return self

    def git(self, *arguments):
        subprocess.run(["git", "-C", self.folder, "-c", "user.name=A", "-c", "user.email=a@b.test", *arguments], check=True, timeout=60)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", "x")

    def start(self, *arguments):
        return subprocess.Popen([self.folder / SCRIPT, "--folder", self.kept, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, cwd="/", start_new_session=True)

    def night(self, *arguments, status=0):
        """What it says, and which steps have run."""
        before = len(self.ran.read_text())
        process = self.start(*arguments)
        said = process.communicate(timeout=PATIENCE)[0]
        assert process.returncode == status, said
        return said, self.ran.read_text()[before:].split()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def eventually(true):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows(said):
    """The table: of each step its result."""
    lines = said.splitlines()
    return {line.split()[0]: line.split()[1] for line in lines[max(i for i, line in enumerate(lines) if line.startswith("step ")) + 1:] if "echo" in line}


def test_all_pass_and_the_next_night_has_nothing_to_do(checkout):
    checkout.steps(one="true", two="mkdir DIST && rmdir DIST")
    said, ran = checkout.night()
    assert ran == ["build", "one", "two"] and rows(said) == dict.fromkeys(ran, "passed")
    said, ran = checkout.night()
    assert ran == [] and rows(said) == {"build": "passed", "one": "passed", "two": "passed"}


def test_what_fails_stops_nothing_and_is_repeated_alone(checkout, tmp_path):
    repaired = tmp_path / "repaired"
    checkout.steps(one="true", two=f"echo the reason; test -e {repaired}", three="true")
    said, ran = checkout.night(status=1)
    assert ran == ["build", "one", "two", "three"] and rows(said)["two"] == "FAILED" and rows(said)["three"] == "passed"
    assert "the reason" in said and (next(checkout.kept.iterdir()) / "two.log").read_text() == "the reason\n"
    repaired.touch()
    assert checkout.night()[1] == ["build", "two"]


def test_a_build_that_fails_ends_the_night(checkout):
    checkout.steps(build="false", one="true")
    said, ran = checkout.night(status=1)
    assert ran == ["build"] and rows(said) == {"build": "FAILED", "one": "-"}


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_it_is_ended_with_its_step_and_goes_on_there_with_the_same_seed(checkout, tmp_path, number, status):
    process_id, seeds, go = tmp_path / "id", tmp_path / "seeds", tmp_path / "go"
    checkout.steps(one="true", two=f"echo SEED >>{seeds}; test -e {go} || {{ sleep 600 & echo $PPID $! >{process_id}; wait; }}", three="true")
    process = checkout.start()
    eventually(lambda: process_id.exists() and process_id.read_text().endswith("\n"))
    limiter, sleeper = process_id.read_text().split()
    if number == signal.SIGKILL:  # nobody but timeout ends the step then, and timeout does not in the moment after its fork
        eventually(lambda: pathlib.Path(f"/proc/{limiter}/stat").read_text().rpartition(")")[2].split()[0] == "S")
    process.send_signal(number)
    said = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == status
    if number != signal.SIGKILL:
        assert rows(said) == {"build": "passed", "one": "passed", "two": "-", "three": "-"}
    eventually(lambda: not os.path.exists(f"/proc/{sleeper}"))
    go.touch()
    assert checkout.night()[1] == ["build", "two", "three"]
    first, second = seeds.read_text().split()
    assert first == second
    checkout.night("--only", "two")
    assert seeds.read_text().split()[2] != first


def test_a_step_that_is_late_is_ended(checkout):
    checkout.steps(one="sleep 600", two="true")
    script = checkout.folder / SCRIPT
    script.write_text(script.read_text().replace("\none 60s", "\none 0.1s"))
    said, ran = checkout.night(status=1)
    assert ran[-1] == "two" and rows(said)["one"] == "late"


def test_another_commit_and_what_is_not_committed_begin_anew(checkout):
    checkout.steps(one="true")
    everything = ["build", "one"]
    assert checkout.night()[1] == everything
    checkout.commit()
    assert checkout.night()[1] == everything
    (checkout.folder / "more").write_text("a")
    assert checkout.night()[1] == everything and checkout.night()[1] == []
    (checkout.folder / "more").write_text("b")
    assert checkout.night()[1] == everything
    (checkout.folder / "more").unlink()
    assert checkout.night()[1] == []


def test_a_checkout_that_changes_meanwhile_gives_no_result(checkout):
    more = checkout.folder / "more"
    checkout.steps(one=f"touch {more}", two="true")
    said, ran = checkout.night(status=1)
    assert ran == ["build", "one"] and "the checkout has changed while one ran" in said
    more.unlink()
    assert rows(checkout.night("--list")[0]) == {"build": "60s", "one": "60s", "two": "60s"}
    assert checkout.night(status=1)[1] == ["build", "one"]


def test_only_some_run_also_again_and_in_the_order_of_the_table(checkout):
    checkout.steps(one="true", two="true", three="false")
    assert checkout.night("--only", "two", "one")[1] == ["build", "one", "two"]
    assert checkout.night("--only", "one")[1] == ["build", "one"]
    assert checkout.night("--only", "three", status=1)[1] == ["build", "three"]
    said, ran = checkout.night("--only", "four", status=2)
    assert ran == [] and 'no step "four"; there are: build one two three' in said
    for arguments in ("--only",), ("--folder",), ("one",):
        checkout.night(*arguments, status=2)
    said, ran = checkout.night("--list")
    assert ran == [] and "FAILED" in said


def test_two_at_once_are_refused(checkout, tmp_path):
    begun = tmp_path / "begun"
    checkout.steps(one=f"touch {begun}; sleep 600")
    process = checkout.start()
    eventually(begun.exists)
    assert "another one works in this checkout" in checkout.night(status=1)[0]
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 143


def test_programs_under_test_can_be_interrupted(checkout):
    checkout.steps(one="python3 -c 'import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler'")
    checkout.night()


def test_each_step_of_the_table_names_what_exists():
    listed = subprocess.run([ROOT / SCRIPT, "--list"], capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()[1:]
    assert listed[0].startswith("build ")
    targets = "".join(path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt"))
    for line in listed:
        for path in re.findall(r"(?<![\w/])(?:tests|deploy)/[\w./]+", line):
            assert (ROOT / path).exists(), line
            assert not path.endswith((".sh", ".py")) or "pytest" in line or os.access(ROOT / path, os.X_OK), line
        for program in re.findall(r"build/release/bin/(\w+)", line):
            assert f"add_executable({program} " in targets or f"add_executable({program}\n" in targets, line
