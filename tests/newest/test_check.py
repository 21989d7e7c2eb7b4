"""check.py on wheels that are made here: it finds what has changed, and its list of hooks is that of the package."""
import pathlib
import re
import subprocess
import sys

import check
import declarations
import headers
import hooks
import pytest

HERE = pathlib.Path(__file__).resolve().parent


def run(*arguments):
    done = subprocess.run([sys.executable, "-B", HERE / "check.py", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def unpack(folder, project):
    """The files of a project's wheel with each hook in its place."""
    classes = {}
    for hook in project.hooks:
        classes.setdefault(hook.file, {}).setdefault(hook.owner, []).append(hook)
    for file, owners in classes.items():
        text = ""
        for owner, functions in owners.items():
            indent = "    " if owner else ""
            text += f"class {owner}:\n" if owner else ""
            text += "".join(f"{indent}def {hook.name}({', '.join(hook.parameters)}, **more): pass\n".replace("(, ", "(") for hook in functions)
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def project(name):
    return next(each for each in hooks.PROJECTS if each.package == name)


@pytest.mark.parametrize("name", [each.package for each in hooks.PROJECTS if each.hooks])
def test_a_wheel_with_all_hooks(tmp_path, name):
    status, table, said = run("--unpacked", f"{name}={unpack(tmp_path, project(name))}")
    assert status == 0, said
    assert table.count("| found") == len(project(name).hooks) + 1, "and the head of the table"


@pytest.mark.parametrize("name, hook", [(each.package, hook) for each in hooks.PROJECTS for hook in each.hooks])
def test_one_hook_is_renamed(tmp_path, name, hook):
    folder = unpack(tmp_path, project(name))
    path = folder / hook.file
    text = path.read_text(encoding="utf-8")
    begins = text.index(f"class {hook.owner}:") if hook.owner else 0
    path.write_text(text[:begins] + text[begins:].replace(f"def {hook.name}(", f"def {hook.name}_now(", 1), encoding="utf-8")
    status, _, said = run("--unpacked", f"{name}={folder}")
    assert status == 1
    assert ".".join(filter(None, (hook.owner, hook.name))) + f": gone from {hook.file}" in said


def test_a_hook_takes_other_parameters_or_its_file_is_gone(tmp_path):
    vllm = unpack(tmp_path, project("vllm"))
    worker = vllm / "vllm/v1/worker/gpu_worker.py"
    worker.write_text(worker.read_text(encoding="utf-8").replace("sleep(self, level", "sleep(self, options"), encoding="utf-8")
    (vllm / "vllm/device_allocator/cumem.py").unlink()
    status, _, said = run("--unpacked", f"vllm={vllm}")
    assert status == 1
    assert "Worker.sleep: changed: takes (self, options), not (self, level)" in said
    assert "CuMemAllocator.get_instance: gone: there is no vllm/device_allocator/cumem.py" in said


def test_a_call_is_added_to_a_header(tmp_path):
    source = headers.FOLDER / headers.versions()[-1]
    assert source.exists(), "no headers: run tests/newest/headers.py"
    include = tmp_path / "nvidia" / "cu13" / "include"
    include.mkdir(parents=True)
    for name in declarations.HEADERS:
        if (source / name).exists():
            (include / name).write_text((source / name).read_text(encoding="utf-8", errors="replace"), encoding="utf-8")
    assert run("--unpacked", f"nvidia-cuda-runtime={tmp_path}")[0] == 0
    cuda = include / "cuda.h"
    cuda.write_text(cuda.read_text(encoding="utf-8") + "\nCUresult CUDAAPI\n    cuTeleportAsync(CUdeviceptr to,\n        CUstream s);\n", encoding="utf-8")
    status, table, said = run("--unpacked", f"nvidia-cuda-runtime={tmp_path}")
    assert status == 1 and "cuTeleportAsync: driver call without a row" in said
    assert "have a row" in table


def test_names_of_driver_calls_in_binaries(tmp_path):
    known = b"\0cuMemcpyHtoDAsync\0cuLaunchKernel_ptsz\0cuMem\0cuMemcpy%s failed\0cuBLAS\0cuFileRead\0_ZcuMemFooBar\0libcuMemFoo\0"
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libnccl.so.2"
    library.write_bytes(known)
    assert run("--unpacked", f"nvidia-nccl-cu13={tmp_path}")[0] == 0
    # One that lies over the end of what is read at a time.
    library.write_bytes(known + b"\0" * ((4 << 20) - len(known) - 7) + b"\0cuMemTeleport\0" + b"cuStreamFoo\0")
    status, _, said = run("--unpacked", f"nvidia-nccl-cu13={tmp_path}")
    assert status == 1
    assert "cuMemTeleport: driver call without a row" in said and "cuStreamFoo" in said and said.count("driver call without") == 2


def test_a_version_that_amem_refuses():
    class Newer:
        version = "99.1.0"

    report = check.Report()
    check.check_version(report, project("vllm"), Newer)
    assert len(report.faults) == 1 and "refused" in report.faults[0]
    oldest = hooks.window(project("vllm"))[0]
    Newer.version = ".".join(map(str, oldest)) + ".7"
    check.check_version(report, project("vllm"), Newer)
    assert len(report.faults) == 1


def test_what_is_not_known_is_refused():
    status, _, said = run("numpy")
    assert status == 2 and "numpy" in said


def test_the_hooks_are_those_that_the_package_asks_for():
    """What _frameworks.hook() is given in the package: none is missing here."""
    asked = set()
    for path in hooks.CLIENT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        asked |= set(re.findall(r'\bhook\(\s*\w+(?:\.\w+)*, "(\w+)"', text))
    ours = {hook.name for each in hooks.PROJECTS for hook in each.hooks}
    assert asked and asked <= ours
    for each in hooks.PROJECTS:
        assert each.taken_by is None or hooks.window(each)[0] <= hooks.window(each)[1]
