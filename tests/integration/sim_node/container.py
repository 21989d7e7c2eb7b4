"""A process with root's uid and none of its powers, in namespaces of its own: the root of a job's container."""
from __future__ import annotations

import os
import shlex
import subprocess

from sim_node.child import Child
from sim_node.node import Node

# Without a hypervisor's or root's help: where the machine allows user namespaces.
NAMESPACES = ["unshare", "--mount", "--cgroup", "--net", "--ipc", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
PID_NAMESPACE = ["--pid", "--fork", "--kill-child"]
POWERLESS = "exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs"


def possible() -> bool:
    return subprocess.run([*NAMESPACES, *PID_NAMESPACE, "true"], capture_output=True).returncode == 0


def only_the_runtime_directory(node: Node) -> str:
    """Shell commands: of the node's folder the container sees what a job's pod mounts, read-only."""
    run, top = shlex.quote(node.runtime_dir), shlex.quote(node.dir)
    return (f"mount --bind {run} /mnt && mount -t tmpfs none {top} && mkdir {run} && mount --bind /mnt {run} && "
            f"mount -o remount,bind,ro {run} && umount /mnt && ")


def in_container(node: Node, name: str, *command: str, mounts: str = "", host_pid: bool = False) -> Child:
    """Runs a command there. `host_pid`: in the PID namespace of the node."""
    script = f"{'' if host_pid else 'mount -t proc proc /proc && '}{mounts}{POWERLESS} \"$@\""
    return node.adopt(Child(name, [*NAMESPACES, *([] if host_pid else PID_NAMESPACE), "sh", "-c", script, "sh", *command],
                            node.env(), node.log_file(name)))
