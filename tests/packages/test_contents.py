"""The preset "package" can be configured, and what packages hold is built for them."""
import pathlib
import shutil

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.skipif(any(shutil.which(tool) is None for tool in ("ninja", "dpkg")), reason="packages need ninja and dpkg")
def test_packages_have_the_programs_of_the_core_and_of_each_add_on(run, tmp_path):
    run("cmake", "-S", ROOT, "-B", tmp_path, "--preset", "package", cwd=ROOT)
    made = run("ninja", "-C", tmp_path, "-t", "inputs", "package_contents")
    programs = ["amemd", "amem-holder", "amemctl"]
    programs += [name for name, folder in (("amem-checkpoint", "checkpoint"), ("amem-llm-d", "llm_d")) if (ROOT / "addons" / folder).exists()]
    assert [name for name in programs if f"bin/{name}\n" not in made] == []
    assert ("amem-llm-d.8.txt" in made) == ("amem-llm-d" in programs), "its page"
