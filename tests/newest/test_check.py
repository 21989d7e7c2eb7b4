"""check.py on wheels that are made here: it finds what has changed, and its list of hooks has all that the package asks for."""
import pathlib
import re
import subprocess
import sys

import asked
import check
import declarations
import headers
import hooks
import pytest

HERE = pathlib.Path(__file__).resolve().parent
FRAMEWORKS = {hook.file.partition("/")[0] for each in hooks.PROJECTS for hook in each.hooks}


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
    status, table, said = run("--unpacked", f"{name}={folder}")
    what = ".".join(filter(None, (hook.owner, hook.name)))
    if hook.optional:
        assert status == 0 and re.search(rf"\| {what} *\| not there: amem does without", table)
        return
    assert status == 1
    assert f"{what}: gone from {hook.file}" in said


@pytest.mark.parametrize("how", ["from verl.utils.fsdp_utils import", "from ....utils.fsdp_utils import"])
def test_a_hook_that_its_file_imports(tmp_path, how):
    verl = unpack(tmp_path, project("verl"))
    engine, utils = verl / "verl/workers/engine/fsdp/transformer_impl.py", verl / "verl/utils/fsdp_utils.py"
    text = engine.read_text(encoding="utf-8")
    utils.write_text(text + utils.read_text(encoding="utf-8"), encoding="utf-8")
    imports = "".join(f"{how} {hook.name}\n" for hook in project("verl").hooks if "/fsdp/" in hook.file and hook.owner is None)
    engine.write_text(imports + text[text.index("class "):], encoding="utf-8")
    assert run("--unpacked", f"verl={verl}")[0] == 0
    utils.write_text(text.replace("offload_fsdp_model_to_cpu(model,", "offload_fsdp_model_to_cpu(chunks,"), encoding="utf-8")
    assert "offload_fsdp_model_to_cpu: changed: takes (chunks), not (model)" in run("--unpacked", f"verl={verl}")[2]
    utils.write_text(text.replace("offload_fsdp_model_to_cpu", "offload_fsdp_model"), encoding="utf-8")
    status, _, said = run("--unpacked", f"verl={verl}")
    assert status == 1 and "offload_fsdp_model_to_cpu: gone from verl/workers/engine/fsdp/transformer_impl.py" in said


@pytest.mark.parametrize("name", ["slime", "miles"])
def test_a_project_that_no_index_has(name):
    status, table, said = run(name)
    assert status == 2 and f"not read: no package index has it; --unpacked {name}=CHECKOUT reads https://github.com/" in table
    assert f"check: {name}: not read" in said


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


def test_a_version_that_was_not_tried():
    """It runs with a warning, so it is no fault."""
    class Newer:
        version = "99.1.0"

    report = check.Report()
    check.check_version(report, project("vllm"), Newer)
    assert report.lines[-1][-1].startswith("new: amem was tried with 0.20 to ")
    oldest = hooks.window(project("vllm"))[0]
    Newer.version = ".".join(map(str, oldest)) + ".7"
    check.check_version(report, project("vllm"), Newer)
    assert report.lines[-1][-1].startswith("known: ") and not report.faults


def test_a_wheel_without_an_optional_file(tmp_path):
    vllm = unpack(tmp_path, project("vllm"))
    (vllm / "vllm/device_allocator/sleep_mode_backend.py").unlink()
    status, table, said = run("--unpacked", f"vllm={vllm}")
    assert status == 0 and table.count("not there: amem does without") == 5, said


def test_what_is_not_known_is_refused():
    status, _, said = run("numpy")
    assert status == 2 and "numpy" in said


def missing(found):
    """What is asked for and not listed in hooks.py."""
    def is_listed(each, hook):
        place = hook.owner or hook.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return (place, hook.name, hook.file.partition("/")[0]) == (each.owner, each.name, each.framework) \
            and hook.parameters[:len(each.parameters)] == each.parameters

    return sorted(each for each in found if not any(is_listed(each, hook) for project in hooks.PROJECTS for hook in project.hooks))


def test_the_hooks_are_those_that_the_package_asks_for():
    found, unread = asked.read(hooks.CLIENT, FRAMEWORKS)
    assert not unread, "write the names at these places so that asked.py can read them"
    assert not missing(found), "tests/newest/hooks.py lists each hook"
    assert {each.framework for each in found} == FRAMEWORKS
    for each in hooks.PROJECTS:
        assert each.taken_by is None or hooks.window(each)[0] <= hooks.window(each)[1]


@pytest.mark.parametrize("name", [hook.name for each in hooks.PROJECTS if each.package in ("verl", "slime") for hook in each.hooks]
                         + ["wake_up", "add_cli_args", "init_device", "release_memory_occupation", "AROUND", "offload_to_cpu"])
def test_a_hook_that_is_not_listed(monkeypatch, name):
    fewer = [each._replace(hooks=[hook for hook in each.hooks if hook.name != name]) for each in hooks.PROJECTS]
    monkeypatch.setattr(hooks, "PROJECTS", fewer)
    assert {each.name for each in missing(asked.read(hooks.CLIENT, FRAMEWORKS)[0])} == {name}


def read(tmp_path, text):
    (tmp_path / "new.py").write_text("import importlib, sys\nfrom amem.frameworks import hook, replace\n" + text, encoding="utf-8")
    found, unread = asked.read(tmp_path, FRAMEWORKS)
    return {(each.owner, each.name, *each.parameters) for each in found}, unread


@pytest.mark.parametrize("text, expected", [
    ("NAMES = ('one', 'two')\nimport verl.a as owner\nfor each in NAMES:\n    hook(owner, each, 'self')",
     {("verl.a", "one", "self"), ("verl.a", "two", "self")}),
    ("HOOKS = {'one': ('self',)}\ndef install():\n    from verl import a\n    for each, more in HOOKS.items(): hook(a, each, *more)",
     {("verl.a", "one", "self")}),
    ("def need(owner, name): hook(owner, name)\ndef install(): [need(importlib.import_module('verl.a'), each) for each in NAMES]\n"
     "NAMES = ['one'] + ['two']", {("verl.a", "one"), ("verl.a", "two")}),
    ("from verl.a import Engine as E\nE.one, other = print, E.two", {("Engine", "one"), ("Engine", "two")}),
    ("def change(owner): owner.one = 1\nchange(sys.modules['verl.a'].Engine)", {("Engine", "one")}),
    ("from verl import a\na.one = print\nreplace(a, 'two', print)\nsetattr(a, 'three', print)\ngetattr(a, 'four')",
     {("verl.a", each) for each in ("one", "two", "three", "four")}),
    ("from verl.a import Engine\nclass Ours(Engine):\n    def one(self): super().two()", {("Engine", "two")}),
    ("PLACE = 'verl.a.Engine'\nprint(f'{PLACE}.one')", {("Engine", "one")}),
])
def test_ways_to_ask(tmp_path, text, expected):
    assert read(tmp_path, text) == (expected, set())


@pytest.mark.parametrize("text", [
    "hook(module, 'one')", "hook(a, name)", "hook(a, *names)", "hook(a, 'one', *more)", "hook(owner=a, name='one')", "getattr(a, name)",
    "setattr(a, name, print)", "replace(a, name, print)", "for name in names(): hook(a, name)", "def install(name): hook(a, name)",
    "NAMES = ['one']\nNAMES.append(two)\nfor name in NAMES: hook(a, name)",
    "NAMES = {'one': 1}\nNAMES[two] = 1\nfor name in NAMES: hook(a, name)",
    "name = 'one'\ndef install(name=None): hook(a, name)", "name = 'one'\nprint(lambda name: hook(a, name))",
])
def test_a_name_that_cannot_be_read(tmp_path, text):
    assert read(tmp_path, "import verl.a as a\n" + text)[1]
