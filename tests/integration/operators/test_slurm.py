"""Slurm's own slurmctld and slurmd suspend jobs that `amemctl run --job-control` starts. Skipped without Debian's slurmctld, slurmd and munge."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import pytest

from sim_node import MIB
from sim_node.child import eventually, patience
from sim_node.stage import start_stage

NEEDS = ("slurmctld", "slurmd", "sbatch", "munged", "munge")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd needs root"),
    pytest.mark.skipif(not all(shutil.which(each) for each in NEEDS), reason=f"needs {', '.join(NEEDS)}"),
]

SIZE = 40 * MIB
MEMORY = SIZE + 20 * MIB
CONFIGURATION = """
ClusterName=amem
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=SUSPEND,GANG
SchedulerTimeSlice=5
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 OverSubscribe=FORCE:1 State=UP
PartitionName=high Nodes={host} PriorityTier=10 OverSubscribe=FORCE:1 State=UP
PartitionName=gang Nodes={host} PriorityTier=1 OverSubscribe=FORCE:2 State=UP
"""
EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "slurm"
# It verifies its memory, ten times a second.
COMMAND = '( echo "plain {size}"; echo "fill 1 7"; for i in $(seq {looks}); do sleep 0.1; echo "verify 1 7"; done ) | {puppet} 0'


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Slurm:
    """A cluster of this one node. Each job takes all of its CPUs."""

    def __init__(self, node, folder):
        self.node, self.folder = node, pathlib.Path(folder)
        for each in ("state", "spool"):
            (self.folder / each).mkdir()
        host = socket.gethostname().split(".")[0]
        self.cpus = os.cpu_count() or 1
        path = self.folder / "slurm.conf"
        path.write_text(CONFIGURATION.format(host=host, folder=folder, ports=(free_port(), free_port()), cpus=self.cpus))
        bin_folder = os.path.dirname(node.build.program("amemctl"))
        self.env = {**node.env({"AMEM_MODULES": "amem-puppet", "AMEM_LOG": "info"}, node.build), "SLURM_CONF": str(path),
                    "PATH": f"{bin_folder}:{os.environ['PATH']}", "AMEM_RUNTIME_DIR": node.runtime_dir}
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode != 0:
            pathlib.Path("/run/munge").mkdir(exist_ok=True)
            shutil.chown("/run/munge", "munge")
            subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "munged"], check=True)
        for daemon in ("slurmctld", "slurmd"):
            subprocess.run([daemon, "-f", str(path)], env=self.env, check=True)
        eventually(lambda: "idle" in self("sinfo", "-h", "-p", "low"), deadline=60, what="the node is idle")

    def __call__(self, *command):
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=True, timeout=patience(60)).stdout

    def command(self, looks):
        return COMMAND.format(size=SIZE, looks=looks, puppet=self.node.build.program("amem-puppet"))

    def submit(self, name, partition, *arguments, script="suspend.sbatch"):
        """Returns where the job's output goes."""
        out = self.folder / f"{name}.out"
        self("sbatch", "-J", name, "-p", partition, f"-n{self.cpus}", "-o", str(out), str(EXAMPLES / script), *arguments)
        return out

    def submit_looks(self, name, partition, looks):
        return self.submit(name, partition, "bash", "-c", self.command(looks))

    def states(self):
        """By job."""
        return dict(line.split() for line in self("squeue", "-h", "-o", "%j %T").splitlines())

    def close(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            self("scancel", "-u", "root")
        for daemon in ("slurmd", "slurmctld"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.kill(int((self.folder / f"{daemon}.pid").read_text()), signal.SIGKILL)


@pytest.fixture
def slurm(bare_node, tmp_path):
    clusters = []

    def start(**settings):
        bare_node.settings.update({"AMEM_SIM_MEMORY": str(MEMORY), "AMEM_SIM_DEVICES": "1", **settings})
        if not bare_node.has_broker:
            bare_node.start_broker("--pool-size", "160MiB")
        clusters.append(Slurm(bare_node, tmp_path))
        return clusters[0]

    yield start
    for each in clusters:
        each.close()


def group(node, name):
    """Under Slurm its name has the job's number."""
    return next((each for each in node.ctl("groups").json["groups"] if each["address"].startswith(name + ":slurm-") or each["name"] == name), None)


def assert_right(out, looks):
    """The memory was right whenever it was looked at."""
    lines = out.read_text().splitlines()
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(answers) == looks + 3 and all(each["ok"] for each in answers), lines


def test_preemption_suspends_a_job_and_frees_its_memory(slurm, bare_node):
    cluster = slurm()
    low = cluster.submit_looks("low", "low", 60)
    eventually(lambda: (group(bare_node, "low") or {}).get("resident_bytes") == SIZE, deadline=60, what="the job has its memory")
    high = cluster.submit_looks("high", "high", 30)
    eventually(lambda: cluster.states().get("low") == "SUSPENDED", deadline=60, what="the job is suspended")
    eventually(lambda: (group(bare_node, "high") or {}).get("resident_bytes") == SIZE, deadline=60, what="the other has the GPU")
    assert group(bare_node, "low")["resident_bytes"] == 0
    assert group(bare_node, "low")["stopped_ranks"] == 1
    eventually(lambda: not cluster.states(), deadline=90, what="both have ended")
    assert_right(low, 60)
    assert_right(high, 30)


def test_gang_scheduling_gives_each_job_its_slices(slurm, bare_node):
    cluster = slurm()
    outs = [cluster.submit_looks(name, "gang", 80) for name in ("one", "two")]
    seen = set()

    def both_have_run():
        with contextlib.suppress(subprocess.CalledProcessError):
            seen.update(name for name, state in cluster.states().items() if state == "SUSPENDED")
        return not cluster.states()

    eventually(both_have_run, deadline=150, what="both have ended")
    assert seen == {"one", "two"}, "each was suspended while the other ran"
    for out in outs:
        assert_right(out, 80)


def test_a_grace_time_that_is_too_short_loses_nothing(slurm, bare_node):
    """SIGSTOP comes in the middle of the copies: the memory stays, or leaves after SIGCONT, and amemd shows who has stopped."""
    cluster = slurm(AMEM_SIM_BANDWIDTH="0.01")  # 40 MiB take 4 s, Slurm gives 2
    low = cluster.submit_looks("low", "low", 10)  # each look at the memory takes as long
    eventually(lambda: (group(bare_node, "low") or {}).get("resident_bytes") == SIZE, deadline=60, what="the job has its memory")
    time.sleep(6)  # it has been filled
    number = cluster("squeue", "-h", "-o", "%i").strip()
    cluster("scontrol", "suspend", number)
    eventually(lambda: group(bare_node, "low")["stopped_ranks"] == 1, deadline=60, what="it is shown as stopped")
    time.sleep(2)
    cluster("scontrol", "resume", number)
    eventually(lambda: not cluster.states(), deadline=150, what="it has ended")
    assert_right(low, 10)


def test_two_commands_of_a_job_take_turns(slurm, bare_node):
    start_stage(bare_node, "--pool-size", "160MiB", policy="demand", idle="300ms", start="alone", start_idle="1s", memory=MEMORY)
    cluster = slurm()
    out = cluster.submit("turns", "low", cluster.command(40), cluster.command(60), script="turns.sbatch")
    eventually(lambda: not cluster.states(), deadline=120, what="it has ended")
    assert bare_node.ctl("turns").json["stages"][0]["switches"] >= 2
    answers = [json.loads(line) for line in out.read_text().splitlines() if line.startswith("{")]
    assert len(answers) >= 43 and all(each["ok"] for each in answers)
