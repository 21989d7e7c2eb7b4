#!/usr/bin/env python3
"""torch_memory_saver's own tests and examples, as they are, over amem's distribution of that name.

    upstream_saver.py --prefix PREFIX --source DIRECTORY [--pool SIZE] [-- PYTEST ARGUMENTS]

DIRECTORY: the unpacked source of that package; its folder `test` is used, and nothing else of it. PREFIX: a bundle or a build
tree. All of it runs with the hook library preloaded, which the mode "torch" does not ask for and needs here. Exit status:
pytest's; 77 where there is nothing to run with.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))

from harness import Broker  # noqa: E402

HOOK = "torch_memory_saver_hook_mode_preload.abi3.so"
FILES = ("test_examples.py", "test_utils.py", "test_configure_subprocess.py")
# What the original does in a way that is not amem's.
LEFT_OUT = {
    "test_disk_backup": "amem saves nothing to disks",
    "test_cpu_backup[": "looks for the saved bytes in a buffer of the process's own, also after the resume",
    "test_cpu_backup_rss": "looks for the saved bytes in the process's own memory",
    "test_cpu_backup_preload_backend_from_env": "looks for the saved bytes in the process's own memory",
}
LIMIT_S = 1500


def version(source):
    """What the source says it is."""
    setup = source / "setup.py"
    found = re.search(r"version=['\"]([^'\"]+)", setup.read_text(encoding="utf-8")) if setup.is_file() else None
    commit = source / "COMMIT"
    return " ".join(filter(None, (found[1] if found else "of no known version",
                                  commit.read_text(encoding="utf-8").strip() if commit.is_file() else "")))


def missing(options):
    """Why nothing can be run; empty: it can."""
    if not (options.source / "test" / FILES[0]).is_file():
        return f"there is no {options.source}/test/{FILES[0]}: unpack the source of torch_memory_saver there"
    if not (options.prefix / "dropin" / "torch_memory_saver").is_dir():
        return f"there is no {options.prefix}/dropin/torch_memory_saver"
    done = subprocess.run([sys.executable, "-c", "import pytest, torch; assert torch.cuda.is_available(), 'torch has no GPU'"],
                          capture_output=True, text=True, check=False, timeout=300)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode != 0 else ""


def lay_out(prefix, folder):
    """The distribution as it is installed: the package, and beside it the hook library. The variables that use it."""
    site = folder / "site"
    site.mkdir()
    (site / "torch_memory_saver").symlink_to((prefix / "dropin" / "torch_memory_saver").resolve())
    for mode in ("preload", "torch"):
        (site / HOOK.replace("preload", mode)).symlink_to((prefix / "lib" / "libamem_shim.so").resolve())
    return {"PYTHONPATH": ":".join(filter(None, (str(site), str(prefix / "python"), os.environ.get("PYTHONPATH")))),
            "LD_PRELOAD": str(site / HOOK)}


def pytest_arguments(source, more):
    """LEFT_OUT are the beginnings of names."""
    left_out = [f"--deselect={FILES[0]}::{name}" for name in LEFT_OUT]
    files = [name for name in FILES if (source / "test" / name).is_file()]
    return ["-v", "-rs", "-p", "no:cacheprovider", "--rootdir", str(source / "test"), *left_out, *more, *files]


def run(options, folder):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AMEM_", "TMS_")) and name != "LD_PRELOAD"}
    broker = Broker(options.prefix, folder / "broker", options.pool, clean)
    try:
        broker.wait_ready()
        environment = {**clean, **lay_out(options.prefix, folder), "AMEM_RUNTIME_DIR": str(broker.runtime)}
        return subprocess.run([sys.executable, "-m", "pytest", *pytest_arguments(options.source, options.pytest)],
                              env=environment, cwd=options.source / "test", check=False, timeout=LIMIT_S).returncode
    finally:
        broker.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prefix", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--pool", default="32GiB")
    parser.add_argument("pytest", nargs="*", help="for pytest")
    options = parser.parse_args()
    options.prefix, options.source = options.prefix.resolve(), options.source.resolve()
    if why := missing(options):
        print(f"SKIP: {why}")
        return 77
    print(f"torch_memory_saver {version(options.source)}")
    for name, why in LEFT_OUT.items():
        print(f"left out: {name.rstrip('[')}: {why}")
    with tempfile.TemporaryDirectory() as folder:
        return run(options, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
