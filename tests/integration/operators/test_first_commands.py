"""The first commands of README.md, as a newcomer pastes them: one after the other, without looking."""
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from sim_node import patience

ROOT = pathlib.Path(__file__).resolve().parents[3]
# What stands for a job: processes that allocate after a while, as programs do that import much first, and run until they are killed.
JOB = """
import subprocess, sys, time
time.sleep(0.5)
ranks = []
for number in range({ranks}):
    ranks.append(subprocess.Popen(["{program}", "heap"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True))
    ranks[-1].stdin.write("alloc 0 1048576 1\\n")
    ranks[-1].stdin.flush()
    time.sleep(0.05)
ranks[0].wait()
"""


def commands(page, section):
    """Of the first shell block below a heading, without the installation."""
    text = (ROOT / page).read_text(encoding="utf-8")
    block = re.search(r"^```\n(.*?)^```", text[text.index(f"\n## {section}\n"):], re.M | re.S)[1]
    return "\n".join(line for line in block.splitlines() if not line.startswith("pip "))


@pytest.mark.parametrize("page, section, broker", [
    ("README.md", "Use it", ""),
    ("docs/getting-started.md", "Start and steer the jobs", "amemd &\n"),
])
def test_they_can_be_pasted(bare_node, tmp_path, page, section, broker):
    node = bare_node

    def stand_in(name, text):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)

    for name, ranks in (("torchrun", 8), ("python", 1)):
        stand_in(name, f"#!{sys.executable}\n" + JOB.format(ranks=ranks, program=node.build.program("amem-workload")))
    # It serves later than a job would look for it.
    stand_in("amemd", f"#!/bin/sh\nsleep 2\nexec {node.build.program('amemd')} --config /dev/null --pool-size 64MiB --pool-segment 16MiB\n")
    stand_in("amemctl", f"#!/bin/sh\nexec {node.build.program('amemctl')} \"$@\"\n")
    script = f"trap 'kill $(jobs -p)' EXIT\n{broker}{commands(page, section)}\namemctl groups --json >groups\n"
    shell = subprocess.Popen(["bash", "-ec", script], cwd=tmp_path, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, env=node.env({"PATH": f"{tmp_path}:{os.environ['PATH']}"}), start_new_session=True)
    try:
        # Not until all have closed the output: what it leaves in the background may do so later.
        status = shell.wait(patience(60))
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    said = shell.stdout.read()
    assert status == 0, said
    assert "train: paused in" in said and "rollout: paused in" in said and "train: resumed in" in said, said
    assert '"rank_count":8' in (tmp_path / "groups").read_text()
