"""The headers of CUDA and NCCL: deploy/deps.sh and cmake take a folder only if it has all that the build and the tests read."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = [line for line in (ROOT / "cmake" / "cuda_headers.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def cuda(include, version=13000, without=()):
    """A folder with CUDA's headers, which are empty but for the version."""
    for name in set(NAMES) - set(without):
        path = include / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#define CUDA_VERSION {version}\n" if name == "cuda.h" else "", encoding="utf-8")
    return include


def nccl(include, minor=28):
    include.mkdir(parents=True, exist_ok=True)
    (include / "nccl.h").write_text(f"#define NCCL_MAJOR 2\n#define NCCL_MINOR {minor}\n", encoding="utf-8")
    return include


@pytest.fixture
def tree(tmp_path):
    """A checkout with deps.sh, and a machine where every package is installed and no Python package index can be reached."""
    for name in ("deploy/deps.sh", "deploy/locks/cuda.txt", "deploy/locks/nccl.txt", "cmake/AmemHeaders.cmake", "cmake/cuda_headers.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, does in (("dpkg-query", "echo installed"), ("apt-get", "exit 1"),
                       ("python3", 'case $* in *--version*) ;; *) echo "asked for: $*" >&2; exit 1 ;; esac')):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    return tmp_path


def environment(tree):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AMEM_", "CUDA_", "NCCL_"))}
    return {**clean, "PATH": f"{tree}/tools:{os.environ['PATH']}", "CUDA_HOME": str(tree / "toolkit"), "NCCL_HOME": str(tree / "nccl")}


def deps(tree):
    """What deps.sh says. A folder of this machine serves where none of the tree does, so it may succeed in any case."""
    done = subprocess.run([tree / "deploy" / "deps.sh"], env=environment(tree), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, timeout=60, check=False)
    assert "all packages are installed" in done.stdout, done.stdout
    return done.stdout


def configured(tree, *arguments):
    """What cmake says of the headers, and whether it goes on."""
    (tree / "build").mkdir(exist_ok=True)
    done = subprocess.run(["cmake", *arguments, "-P", tree / "cmake" / "AmemHeaders.cmake"], env=environment(tree), cwd=tree,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    return done.returncode == 0, " ".join(done.stdout.split())


@pytest.mark.parametrize("missing", NAMES)
def test_a_folder_that_lacks_one_is_not_taken(tree, missing):
    fetched, toolkit = tree / "build" / "headers" / "nvidia" / "cu13" / "include", tree / "toolkit" / "include"
    nccl(tree / "nccl" / "include")
    cuda(fetched, without=[missing])
    cuda(toolkit)
    assert f"headers: CUDA in {toolkit}, NCCL in {tree}/nccl/include" in deps(tree)
    assert f"CUDA's headers are in {toolkit}," in configured(tree)[1]
    (toolkit / missing).unlink()
    assert f"CUDA in {toolkit}" not in deps(tree)
    assert f"CUDA's headers are in {toolkit}," not in configured(tree)[1]
    cuda(fetched)
    assert f"headers: CUDA in {fetched}," in deps(tree)
    assert f"CUDA's headers are in {fetched}," in configured(tree)[1]


def test_what_is_fetched_is_of_one_version_with_all_headers(tree):
    """Where this machine has no toolkit. Else what would be fetched is not seen here, but on a fresh machine (tests/fresh.sh)."""
    nccl(tree / "nccl" / "include")
    said = deps(tree)
    if "headers: CUDA in" not in said:
        for wheel in ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl", "nvidia-cuda-profiler-api"):
            assert f"{wheel}==13.0." in said
        assert "pip could not download" in said


def test_older_ones_are_not_taken(tree):
    toolkit = cuda(tree / "toolkit" / "include", version=12090)
    old = nccl(tree / "nccl" / "include", minor=26)
    said, found = deps(tree), configured(tree)[1]
    for folder in (toolkit, old):
        assert f"in {folder}" not in said and f"are in {folder}" not in found


@pytest.mark.parametrize("make, why", [
    (lambda at: cuda(at, without=["cudaProfiler.h"]), "has no cudaProfiler.h"), (lambda at: cuda(at, version=12090), "is of CUDA 12090")])
def test_a_folder_that_was_named_must_do(tree, make, why):
    named, other = make(tree / "named"), nccl(tree / "nccl" / "include")
    ok, said = configured(tree, f"-DAMEM_CUDA_INCLUDE={named}", f"-DAMEM_NCCL_INCLUDE={other}")
    assert not ok and f"AMEM_CUDA_INCLUDE={named} {why}" in said and "deploy/deps.sh" in said and "-UAMEM_CUDA_INCLUDE" in said


def test_so_must_a_folder_for_nccl(tree):
    named, old = cuda(tree / "named"), nccl(tree / "old", minor=26)
    ok, said = configured(tree, f"-DAMEM_CUDA_INCLUDE={named}", f"-DAMEM_NCCL_INCLUDE={old}")
    assert not ok and f"AMEM_NCCL_INCLUDE={old} has no nccl.h of NCCL 2.27 or newer" in said and "-UAMEM_NCCL_INCLUDE" in said
