"""Puppet: a process that makes the driver calls that a test tells it (tests/puppet/manual.md)."""
from sim_node.child import Told


class Puppet(Told):
    """On its device; its memory is brokered. `group`: None for a process without the shim. `preload`: LD_PRELOAD as the
    command sets it for itself. `prefix`: as_user(), to be another user."""

    def __init__(self, node, name, device=0, group="train", scope="nccl", env=None, preload=None,
                 prefix=()):
        build = node.build.for_others() if prefix else node.build
        environment = node.env({"RANK": str(device), "AMEM_LOG": "debug", "AMEM_MODULES": "amem-puppet",
                                "AMEM_SCOPE": scope, **(env or {})}, build)
        launcher = node.launcher(group, build) if group else []
        chosen = ["env", "LD_PRELOAD=" + preload] if preload else []
        argv = [*prefix, *launcher, *chosen, build.program("amem-puppet"), device]
        super().__init__(name, argv, environment, node.log_file(name))

    def loop_runs(self, launches=5):
        """Returns when the loop has launched so often from now on."""
        first = self.ask("loop status")["launches"]
        while self.ask("loop status")["launches"] < first + launches:
            pass

    def loop_error(self):
        """What the loop ended with; None while it goes on."""
        self.send("loop status")
        return self.json_line().get("error")
