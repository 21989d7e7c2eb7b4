"""deploy/try.py --turns, which an installation has as `amem-demo --turns`."""
import os
import pathlib
import re
import subprocess
import sys

from sim_node import patience

PROGRAM = pathlib.Path(__file__).resolve().parents[3] / "deploy" / "try.py"


def test_its_story(build, tmp_path):
    done = subprocess.run([sys.executable, "-B", PROGRAM, "--build", build.directory, "--turns"], env={**os.environ, "TMPDIR": str(tmp_path)},
                          capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"OK: 10 requests answered, [\d,]+ bytes verified, none wrong; \d switches that nobody asked for, "
                        r"slowest \d+\.\d\d s, on 1 simulated GPU", lines[-1]), lines[-1]
    said = [line.partition(" s  ")[2] for line in lines]
    # The first request to a paused group, from its arrival to its answer.
    story = [r"chat gets a request", r"chat waits in cuLaunch\w+", r"chat in, search out, in \S+ s: group 'chat' has waited for .*", r"chat answers after .*"]
    at = [next(i for i, line in enumerate(said) if re.fullmatch(pattern, line)) for pattern in story]
    assert at == sorted(at), done.stdout
    assert sum(" answers after " in line for line in said) == 10
    assert list(tmp_path.iterdir()) == []
