"""What our libraries show to others is what the lists of it say, and the client library's ABI is the recorded one."""
import pathlib
import re
import shutil
import subprocess

import pytest
from exports import ABI, LISTS, exported, write_abi

CHANGED = ("If that is meant, write the lists anew (tests/packages/exports.py --update). What programs may use already must not go away "
           "or change: that needs a new major version.")


@pytest.mark.parametrize("library", LISTS)
def test_symbols_are_those_listed(build, library):
    found, known = exported(build / "lib" / library), LISTS[library].read_text(encoding="utf-8").split()
    more, less = sorted(set(found) - set(known)), sorted(set(known) - set(found))
    assert not more and not less, f"{library} exports {more}, which are not in {LISTS[library]}, and lacks {less}. {CHANGED}"
    assert found == known, f"{LISTS[library]} is not sorted, or names a symbol twice"


@pytest.mark.skipif(not shutil.which("abidiff"), reason="needs abidiff (Debian: abigail-tools)")
def test_abi_is_the_recorded_one(build, tmp_path):
    now = tmp_path / "now.abi"
    write_abi(build / "lib" / "libamem_client.so", now)
    done = subprocess.run(["abidiff", str(ABI), str(now)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"the ABI of libamem_client differs from {ABI}:\n{done.stdout}\n{CHANGED}"


# By the distribution that builds it. Debian's is what wheels and images are made of, and goes into images of Ubuntu 22.04 (glibc 2.35).
OLDEST_GLIBC = {"debian 12": "2.35", "ubuntu 24.04": "2.38"}
STATIC = pathlib.Path(__file__).parents[2] / "deploy" / "static" / "glibc"


def oldest_glibc(build):
    """What is promised of this build: with the libraries of deploy/static.sh another C library than the distribution's."""
    if "toolchain.cmake" in (build / "CMakeCache.txt").read_text(encoding="utf-8"):
        return STATIC.read_text(encoding="utf-8").strip()
    release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines() if "=" in line)
    system = " ".join(release.get(key, "").strip('"') for key in ("ID", "VERSION_ID"))
    if system not in OLDEST_GLIBC:
        pytest.skip(f"nothing is promised of what {system} builds")
    return OLDEST_GLIBC[system]


def test_the_shim_runs_with_a_glibc_as_old_as_promised(build, run):
    def number(version):
        return tuple(map(int, version.split(".")))

    limit = number(oldest_glibc(build))
    needed = {symbol: number(version) for version, symbol in
              re.findall(r"\(GLIBC_([0-9.]+)\)\s+(\S+)", run("objdump", "-T", build / "lib" / "libamem_shim.so"))}
    assert needed
    assert not {symbol: version for symbol, version in needed.items() if version > limit}
