"""RayNodes: real raylets on this machine, each of which is a simulated node with a driver of its own."""
import os
import pathlib
import time
from typing import Any

# From Ray 2.60 on a cluster wants a token, which Ray keeps in the user's home. With it, drivers that an actor starts lose their actors.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray.util import placement_group, remove_placement_group  # noqa: E402

from sim_node.child import eventually, patience  # noqa: E402
from sim_node.node import Build, Node  # noqa: E402

MIB = 1 << 20
POOL = 64 * MIB
HERE = os.path.dirname(os.path.abspath(__file__))


class RayNodes:
    """The first raylet is the head's, where the driver is; it is a node as the others are."""

    def __init__(self, build: Build, logs: pathlib.Path, count: int = 4, memory: int = 256 * MIB, dashboard: bool = False) -> None:
        self.sims: list[Node] = []
        self.raylets: list[Any] = []  # Ray's, as its placement groups
        self.groups: list[Any] = []
        self.cluster = Cluster()
        for number in range(count):
            folder = logs / f"node{number}"
            folder.mkdir()
            sim = Node(build, str(folder))
            self.sims.append(sim)
            env = {**sim.settings, "AMEM_POOL_SEGMENT": "16MiB", "AMEM_POOL_CHUNK": "64KiB",
                   "PYTHONPATH": os.pathsep.join((os.path.join(build.directory, "python"), HERE))}
            more = {"include_dashboard": dashboard} if number == 0 else {}
            self.raylets.append(self.cluster.add_node(
                num_cpus=2, num_gpus=2, memory=memory, object_store_memory=80 * MIB, env_vars=env,
                resources={f"place{number}": 1}, **more))
        ray.init(address=self.cluster.address, log_to_driver=False)

    def placed(self, *numbers: int) -> Any:
        """A placement group with a bundle on each of these nodes, in this order; by default on all."""
        group = placement_group([{"CPU": 1, "GPU": 1, f"place{number}": 0.1} for number in numbers or range(len(self.raylets))])
        assert group.wait(patience(60)), "the placement group is not placed"
        self.groups.append(group)
        return group

    def kill_raylet(self, node_id: str) -> float:
        """SIGKILL, as when the machine goes; not the head's. Gives the time at which it was done."""
        [raylet] = [each for each in self.raylets if each.node_id == node_id]
        assert raylet is not self.cluster.head_node
        self.cluster.remove_node(raylet, allow_graceful=False)
        return time.monotonic()

    def alive(self, node_id: str) -> bool:
        """As Ray knows it."""
        return any(each["NodeID"] == node_id and each["Alive"] for each in ray.nodes())

    def free(self) -> None:
        """The placement groups so far are not needed any more."""
        while self.groups:
            remove_placement_group(self.groups.pop())

    def close(self) -> None:
        if ray.is_initialized():
            self.free()
            ray.shutdown()
        self.cluster.shutdown()
        for sim in self.sims:
            sim.close()


def left_behind() -> list[str]:
    """Processes and directories of clusters that amem.ray has started, on this machine."""
    found = [os.path.join("/tmp", name) for name in os.listdir("/tmp") if name.startswith(f"amem-{os.getuid()}-")]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"/amem-{os.getuid()}-" in line:
            found.append(f"{pid}: {line}")
    return found


def nothing_left(deadline: float = 30) -> None:
    eventually(lambda: not left_behind(), deadline=deadline, what="nothing is left behind")
