"""Program: a process of amem-heap, which uses device memory as a program without NCCL does."""
import os

from sim_node.child import Told


class Program(Told):
    """The answers to its commands are those of amem-workload. `scope` is AMEM_SCOPE; None: without the shim. `group`:
    another name than its own."""

    def __init__(self, node, name="train", scope="heap", rank=0, env=None, group=None):
        environment = node.env({"RANK": str(rank), "AMEM_LOG": "debug", **(env or {})})
        if scope is not None:
            shim = os.path.join(node.build.directory, "lib", "libamem_shim.so")
            environment.update({"AMEM_SCOPE": scope, "AMEM_GROUP": group or name, "LD_PRELOAD": shim})
        self.node = node
        self.number = rank
        title = f"{name}-heap{rank}"
        super().__init__(title, [node.build.program("amem-heap")], environment, node.log_file(title))
        node.adopt(self)
        self.answer(30)

    def verify(self):
        answer = self.ask("verify", 60)
        assert answer["wrong"] == 0 and answer["checked"] > 0, answer

    def stats(self):
        [stats] = self.ask("stats")["stats"]
        return stats

    def brokered(self):
        """Resident bytes by tag and device."""
        return {(each["tag"], each["device"]): each["resident_bytes"] for each in self.stats()["brokered"]}

    def paused(self):
        return {(each["tag"], each["device"]): each["paused_bytes"] for each in self.stats()["brokered"]}

    def unbrokered(self):
        """Bytes by kind and device."""
        return {(each["kind"], each["device"]): each["bytes"] for each in self.stats()["unbrokered"]}
