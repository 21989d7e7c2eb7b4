"""Node: one simulated node of a test: its driver's directory, its broker, its jobs, their logs."""
from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from typing import Any, TypeVar

from sim_node.broker import Broker
from sim_node.child import Child, Died, eventually, processes
from sim_node.combinations import chosen
from sim_node.ctl import Ctl
from sim_node.job import Job
from sim_node.puppet import Puppet
from sim_node.user import Copies

MIB = 1 << 20
# Variables of what starts the tests, which would speak for the ranks.
FOREIGN = ("AMEM_", "CUDA_", "KUBERNETES_", "LD_", "MASTER_", "NCCL_", "RAY_", "SLURM_", "TORCHELASTIC_")
C = TypeVar("C", bound=Child)


class Build:
    """The build tree under test."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self._for_others: Build | None = None

    def program(self, name: str) -> str:
        path = os.path.join(self.directory, "bin", name)
        assert os.access(path, os.X_OK), f"{path} is not there: build it, or name the build tree with --build-dir"
        return path

    @property
    def sim_libraries(self) -> str:
        return os.path.join(self.directory, "lib", "sim")

    def for_others(self) -> Build:
        """The same build where other users reach it."""
        if self._for_others is None:
            self._for_others = CopiedBuild(self)
        return self._for_others

    def close(self) -> None:
        if self._for_others is not None:
            self._for_others.close()


class CopiedBuild(Build):
    """Copies of the programs that are asked for, of the shim and of the simulated driver."""

    def __init__(self, original: Build) -> None:
        self._original = original
        self._copies = Copies()
        super().__init__(self._copies.directory)
        for name in ("libamem_shim.so", "sim"):
            self._copies.of(os.path.join(original.directory, "lib", name), original.directory)

    def program(self, name: str) -> str:
        return self._copies.of(self._original.program(name), self._original.directory)

    def for_others(self) -> Build:
        return self

    def close(self) -> None:
        self._copies.close()


class Node:
    """Ends all that it started when it is closed. Device memory is small: tests fill it on purpose."""

    CONTEXT_BYTES = 2 * MIB
    MEMORY = 96 * MIB

    def __init__(self, build: Build, logs: str) -> None:
        self.build = build
        self.logs = logs
        # Not pytest's directory: a socket's path must be short.
        self.dir = tempfile.mkdtemp(prefix="amem-test-", dir="/tmp")
        os.chmod(self.dir, 0o755)
        self.sim_dir = os.path.join(self.dir, "sim")
        self.runtime_dir = os.path.join(self.dir, "run")
        self.settings = {
            "AMEM_SIM_DIR": self.sim_dir,
            "AMEM_SIM_DEVICES": "2",
            "AMEM_SIM_MEMORY": str(self.MEMORY),
            "AMEM_SIM_GRANULARITY": "64KiB",
            "AMEM_SIM_CONTEXT_BYTES": str(self.CONTEXT_BYTES),
            "AMEM_SIM_FRESH": "pattern",
            "AMEM_RUNTIME_DIR": self.runtime_dir,
            "LD_LIBRARY_PATH": build.sim_libraries,
        }
        self.children: list[Child] = []
        self._broker: Broker | None = None
        self.ctl = Ctl(self)

    def env(self, more: Mapping[str, str | None] | None = None, build: Build | None = None) -> dict[str, str]:
        """The environment of every process of the node. `build`: of another user's, who does not reach the node's own build."""
        env: dict[str, str | None] = {
            name: value for name, value in os.environ.items()
            if not name.startswith(FOREIGN) and name not in ("RANK", "WORLD_SIZE")}
        env.update(chosen())
        env.update(self.settings)
        if build is not None:
            env["LD_LIBRARY_PATH"] = build.sim_libraries
        env.update(more or {})
        return {name: value for name, value in env.items() if value is not None}

    def log_file(self, name: str) -> str:
        return os.path.join(self.logs, name.replace("/", "_") + ".log")

    def adopt(self, child: C) -> C:
        self.children.append(child)
        return child

    @property
    def has_broker(self) -> bool:
        """Whether a broker was started, even if it has ended."""
        return self._broker is not None

    @property
    def broker(self) -> Broker:
        """The broker that was started last."""
        assert self._broker is not None, "no broker was started"
        return self._broker

    @broker.setter
    def broker(self, broker: Broker) -> None:
        self._broker = broker

    def start_broker(self, *flags: str, **options: Any) -> Broker:
        self.broker = self.adopt(Broker(self, flags, **options)).ready()
        return self.broker

    def await_broker(self, broker: Child) -> None:
        def ready() -> bool:
            assert broker.alive(), f"{broker.name} ended with {broker.wait()}: {broker.output()}"
            if not os.path.exists(os.path.join(self.runtime_dir, "control.sock")) or not self.ctl.reachable():
                return False
            pool = self.ctl.status()["pool"]
            return pool["ready_bytes"] >= pool["configured_bytes"] - pool["elastic_bytes"] or bool(pool["error"])

        eventually(ready, what=f"{broker.name} serves")

    def let_others_in(self) -> None:
        """From now on other users may use the GPUs: the simulated driver's state is every process's. REQUIRES: a broker was started."""
        os.chmod(self.sim_dir, 0o777)
        for name in os.listdir(self.sim_dir):
            os.chmod(os.path.join(self.sim_dir, name), 0o666)

    def launcher(self, group: str, build: Build | None = None) -> list[str]:
        return [(build or self.build).program("amemctl"), "--runtime-dir", self.runtime_dir, "run", "--group", group, "--"]

    @property
    def holder_socket(self) -> str:
        return os.path.join(self.runtime_dir + "-holder", "holder.sock")

    def holders(self) -> list[int]:
        """The process ids of the holders that were started here."""
        return [pid for pid, words in processes()
                if words[0].endswith(b"amem-holder") and any(self.runtime_dir.encode() in word for word in words)]

    def holder_pid(self) -> int:
        """The process id of the broker's holder."""
        for pid in self.holders():
            return pid
        raise Died("there is no holder")

    def job(self, name: str = "train", ranks: int = 2, **options: Any) -> Job:
        """A job whose ranks are up."""
        return Job(self, name, ranks, **options).ready()

    def puppet(self, name: str = "puppet", device: int = 0, **options: Any) -> Puppet:
        """A puppet that is up."""
        puppet = self.adopt(Puppet(self, name, device, **options))
        puppet.answer()
        return puppet

    def context_bytes(self, device: int, *jobs: Job) -> int:
        """What the contexts of these jobs' ranks occupy on a device."""
        ordinals = [(rank.number + i) % 2 for job in jobs for rank in job.ranks if rank.alive()
                    for i in range(job.per_process)]
        return self.CONTEXT_BYTES * ordinals.count(device)

    def trace(self, kind: str) -> str:
        """A committed trace, for --trace."""
        here = os.path.dirname(os.path.abspath(__file__))
        path = os.path.join(here, "..", "..", "traces", f"nccl-2.28.9-2ranks-{kind}-rank%r.trace")
        assert glob.glob(path.replace("%r", "*"))
        return os.path.normpath(path)

    def close(self) -> None:
        for child in reversed(self.children):
            if child.alive():
                child.signal(signal.SIGKILL)
        # One that has this process's pidfd, as that of a rank, would not end before it, and would keep the logs open.
        for pid in self.holders():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        for child in reversed(self.children):
            child.close()
        shutil.rmtree(self.dir, ignore_errors=True)
