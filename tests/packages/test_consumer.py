"""A program of somebody else, built against what `cmake --install` has put there and nothing else."""
import os
import pathlib
import shutil

import pytest

CONSUMER = pathlib.Path(__file__).parent / "consumer"
VERSION = (pathlib.Path(__file__).parents[2] / "VERSION").read_text().strip()


@pytest.fixture
def prefix(build, run, tmp_path):
    """The library and what is needed to build with it, moved away from where they were installed: nothing may know that place."""
    installed = tmp_path / "installed"
    for component in ("client", "client_dev"):
        run("cmake", "--install", build, "--prefix", installed, "--component", component)
    return installed.rename(tmp_path / "moved")


def answers(run, program, prefix, tmp_path):
    library = next(prefix.glob("lib*/**/libamem_client.so")).parent
    said = run(program, tmp_path, env={**os.environ, "LD_LIBRARY_PATH": str(library)})
    return said.strip()


def test_by_cmake(run, prefix, tmp_path):
    tree = tmp_path / "build"
    run("cmake", "-S", CONSUMER, "-B", tree, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tree)
    for program in ("in_c", "in_cpp"):
        assert answers(run, tree / program, prefix, tmp_path) == VERSION


def test_another_major_version_is_not_found(run, prefix, tmp_path):
    said = run("cmake", "-S", CONSUMER, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}", "-DWANTED=99.0", status=1)
    assert "99.0" in said and VERSION in said


@pytest.mark.parametrize("language, compiler", [("c", ["cc", "-std=c99"]), ("cpp", ["c++", "-std=c++17"])])
def test_by_pkg_config(run, prefix, tmp_path, language, compiler):
    found = next(prefix.glob("lib*/**/amem_client.pc")).parent
    # As on a machine that has it at no place of its own: what the machine has otherwise is not looked at.
    env = {**os.environ, "PKG_CONFIG_LIBDIR": str(found)}
    env.pop("PKG_CONFIG_PATH", None)
    assert run("pkg-config", "--modversion", "amem_client", env=env).strip() == VERSION
    flags = run("pkg-config", "--cflags", "--libs", "amem_client", env=env).split()
    program = tmp_path / "program"
    run(*compiler, "-pedantic-errors", "-Wall", "-Werror", CONSUMER / f"consumer.{language}", "-o", program, *flags)
    assert answers(run, program, prefix, tmp_path) == VERSION


def test_a_program_of_this_library_asks_for_its_major_version(run, build):
    """So that one of another major version is never loaded in its place."""
    readelf = shutil.which("readelf")
    assert readelf, "deploy/deps.sh installs binutils"
    dynamic = run(readelf, "-d", build / "lib" / "libamem_client.so")
    assert f"[libamem_client.so.{VERSION.partition('.')[0]}]" in dynamic
