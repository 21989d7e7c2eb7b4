"""Another user of the node, for tests that root runs, and what such a user can reach of the build and of these tests."""
import os
import shutil
import subprocess
import tempfile

NOBODY = 65534
# Of the distribution: the interpreter that runs these tests may lie where another user may not go.
PYTHON = "/usr/bin/python3"


def as_user(uid: int, *groups: str) -> list[str]:
    """A prefix that makes a command this user's, who is a member of these groups alone."""
    gids = ",".join(str(subprocess.check_output(["getent", "group", name], text=True).split(":")[2]) for name in groups)
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", f"--groups={gids}" if gids else "--clear-groups"]


class Copies:
    """A folder that every user may enter, with copies of what is asked for. A checkout may lie below one that only its owner may
    enter, such as root's home."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="amem-copies-", dir="/tmp")
        self.directory = self._folder.name
        os.chmod(self.directory, 0o755)

    def of(self, path: str, top: str) -> str:
        """The copy of a file, or of a folder with all in it. It lies below the folder of the copies as the original below `top`."""
        copy = os.path.join(self.directory, os.path.relpath(path, top))
        if not os.path.exists(copy):
            self._enter(os.path.dirname(copy))
            if os.path.isdir(path):
                for name in os.listdir(path):
                    self.of(os.path.join(path, name), top)
            else:
                # Not at its place before it is whole and everybody may read it, whatever this process's umask is.
                shutil.copyfile(path, copy + ".new")
                os.chmod(copy + ".new", 0o755 if os.access(path, os.X_OK) else 0o644)
                os.rename(copy + ".new", copy)
        return copy

    def _enter(self, folder: str) -> None:
        if not os.path.isdir(folder):
            self._enter(os.path.dirname(folder))
            os.mkdir(folder)
            os.chmod(folder, 0o755)

    def close(self) -> None:
        self._folder.cleanup()
