"""The wheel: built by pip from the tree, put somewhere, used."""
import os
import subprocess
import sys

import pytest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "client", "python")
# What pip says when it cannot fetch scikit-build-core.
OFFLINE = ("Could not find a version that satisfies the requirement scikit-build-core", "NewConnectionError",
           "No matching distribution found for scikit-build-core")


def pip(*arguments, env=None):
    return subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], env=env,
                          capture_output=True, text=True, timeout=1790)


def headers(build):
    """Where the build tree under test has found CUDA's and NCCL's, as arguments of cmake."""
    with open(os.path.join(build.directory, "CMakeCache.txt")) as cache:
        lines = dict(line.split(":", 1) for line in cache if line.startswith(("AMEM_CUDA_INCLUDE:", "AMEM_NCCL_INCLUDE:")))
    return " ".join(f"-D{name}={value.split('=', 1)[1].strip()}" for name, value in lines.items())


def test_wheel(tmp_path, build):
    if pip("--version").returncode != 0:
        pytest.skip("there is no pip (deploy/deps.sh installs it)")
    # What is looked at is what the wheel holds, not how fast it is: this takes a third of the time.
    quick = "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -DAMEM_UNITY=ON"
    env = {"CMAKE_BUILD_PARALLEL_LEVEL": "2", "CMAKE_ARGS": f"{headers(build)} {quick}", **os.environ}
    built = pip("wheel", "--no-deps", "--wheel-dir", tmp_path, SOURCE, env=env)
    if built.returncode != 0 and any(text in built.stdout + built.stderr for text in OFFLINE):
        pytest.skip("no package index can be reached, which pip needs for scikit-build-core")
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.startswith("amem-") and "-py3-none-linux_x86_64" in wheel.name

    target = tmp_path / "site"
    installed = pip("install", "--no-deps", "--target", target, wheel)
    assert installed.returncode == 0, installed.stderr
    script = """
import amem, amem.messages, os
from amem import _wire
assert amem.environment("train", "regions")["LD_PRELOAD"] == amem.shim_path()
assert amem.shim_path().startswith(os.environ["PYTHONPATH"])
assert _wire.descriptor_of("NodeStatus").fields
with amem.launch(["sh", "-c", "true"], group="train", runtime_dir="/nowhere") as process:
    assert process.wait() == 0
from importlib.metadata import version
assert version("amem") == amem.__version__
print("good")
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AMEM_", "LD_"))}
    done = subprocess.run([sys.executable, "-c", script], env={**clean, "PYTHONPATH": str(target)}, capture_output=True,
                          text=True)
    assert done.stdout == "good\n", done.stderr
    shim = target / "amem" / "lib" / "libamem_shim.so"
    needed = subprocess.run(["readelf", "-d", shim], capture_output=True, text=True, check=True).stdout
    assert "libstdc++" not in needed and "protobuf" not in needed
