#!/usr/bin/env python3
"""How long a node is without its broker: amemd is killed, and the time from the start of the next until all ranks are back. See --help.

A job on a simulated node runs, or is paused, each time amemd is killed. The next one is started after a while. Counted is from its start until
`amemctl status` answers, and until all ranks have come back. Every byte is verified in between. Each kill while the job is paused
needs a limit of open files (ulimit -Hn) of twice as many as there are allocations: for the simulated driver, whose handles are descriptors.
"""
import argparse
import os
import resource
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from sim_node import eventually  # noqa: E402
from sim_node.broker import Broker  # noqa: E402
from sim_node.node import Build, Node  # noqa: E402

PAGE = 4096


def start_broker(node, number):
    """Until it answers, and until all ranks have said what they hold; seconds."""
    began = time.monotonic()
    node.broker = node.adopt(Broker(node, ("--log-level", "info", "--pool-size", "1536MiB", "--pool-segment", "128MiB"), name=f"amemd-{number}"))
    eventually(lambda: node.ctl.try_("status").code == 0, what="amemd answers")
    serves = time.monotonic() - began
    eventually(lambda: not any(rank["phase"] == "comeback" for rank in node.ctl("ranks").json["ranks"]), what="all ranks are back")
    return serves, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", default="build/release")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--allocations", type=int, default=2000, help="of each rank, each with a descriptor of its own")
    parser.add_argument("--shared", type=float, default=0.1, help="which part of these every other rank has opened")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--down", type=float, default=0.1, help="seconds without an amemd")
    parser.add_argument("--limit", type=float, default=1, help="seconds that none may take longer than")
    arguments = parser.parse_args()
    node = Node(Build(arguments.build_dir), tempfile.mkdtemp(prefix="amem-comeback-", dir="/tmp"))
    node.settings.update(AMEM_SIM_MEMORY="4GiB", AMEM_SIM_GRANULARITY=str(PAGE))
    pauses = resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 2 * arguments.ranks * arguments.allocations
    took = []
    try:
        start_broker(node, 0)
        job = node.job(ranks=arguments.ranks, allocations=arguments.allocations, size=PAGE, shared=arguments.shared,
                       env={"AMEM_SHIM_WITHOUT": "slabs", "AMEM_LOG": "warning"})
        held = sum(rank["allocation_count"] for rank in node.ctl.ranks("train"))
        print(f"comeback: {arguments.ranks} ranks hold {held} allocations; logs in {node.logs}", flush=True)
        for number in range(1, arguments.kills + 1):
            paused = pauses and number % 2 == 0
            if paused:
                node.ctl("pause", "train")
            node.broker.kill()
            time.sleep(arguments.down)
            serves, back = start_broker(node, number)
            took.append(back)
            print(f"comeback: {'paused' if paused else 'running'}: served after {serves:.2f} s, all ranks back after {back:.2f} s", flush=True)
            if paused:
                node.ctl("resume", "train")
            job.check()
    finally:
        node.close()
    took.sort()
    print(f"comeback: all back after {took[len(took) // 2]:.2f} s (median), {took[-1]:.2f} s (longest)")
    return 0 if took[-1] <= arguments.limit else 1


if __name__ == "__main__":
    sys.exit(main())
