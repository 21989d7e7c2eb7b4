"""A way between brokers that a test can cut, or make silent."""
import contextlib
import os
import socket
import threading


class Wire:
    """Passes on what comes in at the socket `path` to the socket `target`, each way in a thread of its own."""

    def __init__(self, path, target):
        self.path, self._target = path, target
        self._lock = threading.Lock()
        self._whole = True
        self._flows = threading.Event()
        self._flows.set()
        self._ends = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """What is under way breaks, and nothing more gets through."""
        with self._lock:
            self._whole = False
            ends, self._ends = self._ends, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hush(self):
        """Nothing gets through from now on, and no end is told."""
        self._flows.clear()

    def mend(self):
        """What a hush has kept back comes now."""
        with self._lock:
            self._whole = True
        self._flows.set()

    def close(self):
        self.cut()
        self._flows.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        os.unlink(self.path)

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with self._lock:
                try:
                    if not self._whole:
                        raise ConnectionRefusedError
                    far.connect(self._target)
                except OSError:
                    near.close()
                    far.close()
                    continue
                self._ends |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self._flows.wait()
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._ends -= {one, other}
