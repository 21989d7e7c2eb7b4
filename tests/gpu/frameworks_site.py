#!/usr/bin/env python3
"""Packs the RL frameworks of examples/ for a machine with GPUs and without a package index.

    frameworks_site.py FOLDER [--python 3.12] [--limit 44] [--have NAME...]

Fetches the frameworks and what they need from the package index, without what the machine has (--have adds to it: PyTorch, transformers
and what comes with them; vLLM and what it needs come from elsewhere). Writes FOLDER/site-1.tar.xz and so on, each of at most --limit MiB,
and FOLDER/trl.tar.xz: verl 0.9.1 does not run beside TRL 1, so that one goes into a folder of its own. There: `tar -xJf` each into a
folder of PYTHONPATH. What DeepSpeed compiles, it compiles there. Run this with a Python that has torch, setuptools, wheel and packaging:
flash-attn's source asks for them before it can be fetched.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from strip_wheel import is_left_out

WANTED = ("verl==0.9.1", "openrlhf==0.11.2", "ray[default]==2.60.0", "TransferQueue", "nvidia-ml-py", "uvloop", "uvicorn", "watchfiles",
          "model-hosting-container-standards", "prometheus-fastapi-instrumentator", "python-multipart", "trl==1.16.0", "pyarrow", "einops",
          "tensordict==0.10.0", "omegaconf==2.3.1")  # verl and Hydra want them as old as that, others say nothing
# Their wheels are for another Python, or there are none: made from the source, without its native code.
FROM_SOURCE = {"antlr4-python3-runtime": "antlr4-python3-runtime==4.9.3", "deepspeed": "deepspeed==0.19.6"}
# OpenRLHF imports its Python files, and calls none of its kernels in the example.
FLASH_ATTENTION = "flash-attn==2.8.3"
FLASH_FILES = ("bert_padding.py", "utils/", "ops/", "layers/", "losses/")
# No function of the examples needs them, or they are optional.
NEVER = {"wandb", "tensorboard", "tensorboard-data-server", "bitsandbytes", "isort", "optimum", "py-spy", "flash-attn",
         "transformers-stream-generator", "torch", "vllm"}
HAVE = {"accelerate", "numpy", "safetensors", "tokenizers", "torchvision", "torchaudio", "torchmetrics", "transformers", "triton", "pyyaml",
        "requests", "tqdm", "filelock", "fsspec", "packaging", "psutil", "regex", "typing-extensions", "jinja2", "sympy", "networkx",
        "setuptools", "urllib3", "certifi", "idna", "charset-normalizer", "httpx", "httpcore", "anyio", "h11", "scipy", "markupsafe", "mpmath",
        "hf-xet", "huggingface-hub", "click", "rich", "ninja", "pillow", "pip", "wheel", "fastapi", "starlette", "pydantic", "pydantic-core",
        "annotated-types", "typing-inspection", "cachetools", "distro", "pyzmq", "setproctitle", "pybase64", "msgspec"}
LEFT_OUT = ("ray/rllib/*", "ray/jars/*", "ray/cpp/*", "ray/include/*", "ray/dashboard/client/*", "pyarrow/tests/*", "pyarrow/include/*",
            "*libarrow_flight*", "pandas/tests/*")
DASHBOARD = "ray/dashboard/client/build"  # Ray waits a minute for its dashboard, which does not start without this folder


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def target_of(name):
    """Where a file of a wheel goes. None: nowhere."""
    parts = name.split("/")
    if parts[0].endswith(".data"):
        parts = parts[2:] if parts[1] in ("purelib", "platlib") else []
    name = "/".join(parts)
    return None if not name or name.endswith("/") else name


def unpack(wheel, folder, patterns):
    with zipfile.ZipFile(wheel) as archive:
        for each in archive.infolist():
            name = target_of(each.filename)
            if name is None or is_left_out(name, patterns):
                continue
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(each))
            if each.external_attr >> 16 & 0o100:
                path.chmod(0o755)


class Index:
    """The package index, for another Python."""

    def __init__(self, python, folder):
        self.folder = folder
        tags = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
        self.platform = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *(word for tag in tags
                                                                                                      for word in ("--platform", tag))]

    def find(self, name):
        return next((each for each in self.folder.glob("*.whl") if canonical(each.name.split("-")[0]) == name), None)

    def fetch(self, requirement):
        name = canonical(requirement.name)
        if self.find(name) is None:
            command = [sys.executable, "-m", "pip", "-q"]
            if name in FROM_SOURCE:
                subprocess.run([*command, "wheel", "--no-deps", "-w", self.folder, FROM_SOURCE[name]], check=True,
                               env={**os.environ, "DS_BUILD_OPS": "0"})
            else:
                subprocess.run([*command, "download", "--no-deps", *self.platform, "-d", self.folder, f"{requirement.name}{requirement.specifier}"],
                               check=True)
        return self.find(name)

    def flash_attention(self, folder):
        """Its Python files alone, as a package that says that it has no kernels."""
        subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--no-build-isolation", "--no-binary=:all:", "-d", self.folder,
                        FLASH_ATTENTION], check=True, env={**os.environ, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"})
        with tarfile.open(next(self.folder.glob("flash_attn*.tar.gz"))) as archive:
            for each in archive.getmembers():
                name = each.name.partition("/")[2]
                if each.isfile() and name.startswith(tuple(f"flash_attn/{file}" for file in FLASH_FILES)):
                    path = folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.extractfile(each).read())
        (folder / "flash_attn" / "__init__.py").write_text("")


def wheels(index, wanted, have, environment):
    """[(name, wheel)] of what is wanted and what that needs, without `have`. `environment`: of the Python of the machine.

    Who is last in `wanted` decides first. A version that does not suit another one is reported.
    """
    from packaging.requirements import Requirement

    found, todo = {}, [Requirement(each) for each in wanted]
    while todo:
        requirement = todo.pop()
        name = canonical(requirement.name)
        if name in found and not requirement.specifier.contains(found[name].name.split("-")[1], prereleases=True):
            print(f"{found[name].name} does not satisfy {requirement}", file=sys.stderr)
        if name in have or name in found:
            continue
        found[name] = wheel = index.fetch(requirement)
        with zipfile.ZipFile(wheel) as archive:
            metadata = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            lines = archive.read(metadata).decode().splitlines()
        for line in lines:
            if line.startswith("Requires-Dist:"):
                needed = Requirement(line.partition(":")[2].strip())
                if needed.marker is None or any(needed.marker.evaluate({**environment, "extra": extra}) for extra in {"", *requirement.extras}):
                    todo.append(needed)
    return sorted(found.items())


def pieces(sizes, limit):
    """Names in groups, each of at most `limit` bytes or one name. `sizes`: of each name, in bytes."""
    groups = []
    for name, size in sorted(sizes.items(), key=lambda each: (-each[1], each[0])):
        group = next((each for each in groups if sum(sizes[other] for other in each) + size <= limit), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups


def pack(folder, names, archive):
    subprocess.run(["tar", "-C", folder, "-I", "xz -T0 -6", "-cf", archive.resolve(), *names], check=True)
    return archive.stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--python", default="3.12", help="of the machine")
    parser.add_argument("--limit", type=float, default=44, help="MiB of an archive")
    parser.add_argument("--have", nargs="+", default=[], metavar="NAME", help="distributions that the machine has, too")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    environment = {"python_version": options.python, "python_full_version": f"{options.python}.0", "sys_platform": "linux",
                   "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix", "implementation_name": "cpython",
                   "platform_python_implementation": "CPython"}
    with tempfile.TemporaryDirectory(prefix="frameworks-site-", dir=options.folder) as scratch:
        site, own, measured, fetched = (pathlib.Path(scratch) / each for each in ("site", "trl", "measured", "fetched"))
        for each in (site, own, measured, fetched):
            each.mkdir()
        index = Index(options.python, fetched)
        for name, wheel in wheels(index, WANTED, HAVE | NEVER | {canonical(each) for each in options.have}, environment):
            unpack(wheel, own if name == "trl" else site, LEFT_OUT if name != "deepspeed" else ())
        index.flash_attention(site)
        (site / DASHBOARD / "static").mkdir(parents=True)
        (site / DASHBOARD / "index.html").write_text("")
        sizes = {}
        for each in sorted(site.iterdir()):
            sizes[each.name] = pack(site, [each.name], measured / "one.tar.xz")
        for number, names in enumerate(pieces(sizes, options.limit * 2**20), 1):
            archive = options.folder / f"site-{number}.tar.xz"
            print(f"{archive}: {pack(site, names, archive) / 2**20:.1f} MiB")
        print(f"{options.folder / 'trl.tar.xz'}: {pack(own, ['.'], options.folder / 'trl.tar.xz') / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
