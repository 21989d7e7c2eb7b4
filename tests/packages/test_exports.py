"""What our libraries show to others is what the lists of it say, and the client library's ABI is the recorded one."""
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
