"""Broker: a running amemd."""
import os
import signal

from sim_node.child import Child


class Broker(Child):
    def __init__(self, node, flags=(), config=None, env=None, name="amemd", program=None):
        self.node = node
        settings = {
            "--runtime-dir": node.runtime_dir,
            "--pool-size": "64MiB",
            "--pool-segment": "16MiB",
            "--pool-chunk": "64KiB",
            "--log-level": "debug",
            # A group that every Debian has, so that tests can be users who may open the sockets.
            "--sockets-group": "nogroup" if os.geteuid() == 0 else None,
        }
        argv = [program or node.build.program("amemd"), "--config", config or "/dev/null"]
        settings.update(dict(zip(flags[::2], flags[1::2])))
        for flag, value in settings.items():
            if value is not None:
                argv += [flag, value]
        super().__init__(name, argv, node.env(env), node.log_file(name))

    def ready(self):
        """Returns when it serves and its pool is complete."""
        self.node.await_broker(self)
        return self

    def held(self):
        """The descriptors that stand for memory and peers; gRPC keeps some more of its own, as it likes."""
        counts = self.descriptors()
        return counts["/memfd"], counts["socket"]

    def holds_at_most(self, held):
        """What held() said may have counted what was about to be closed."""
        return all(now <= then for now, then in zip(self.held(), held))

    def terminate(self):
        """SIGTERM; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()
