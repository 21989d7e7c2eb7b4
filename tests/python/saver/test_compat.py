"""torch_memory_saver's interface, by amem.compat and by the distribution of that name, with a stub of torch."""
from __future__ import annotations

import collections
import ctypes
import importlib
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import amem
import amem.compat
import stub_torch
from amem import _regions, _saver
from conftest import Shim
from sim_node.node import Build

Saver = amem.compat.TorchMemorySaver


@pytest.fixture(autouse=True)
def torch(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> stub_torch.Torch:
    module = stub_torch.make(shim.note)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(_regions, "_idle", collections.defaultdict(list))
    monkeypatch.delenv("TMS_INIT_ENABLE", raising=False)
    _saver._scope.cache_clear()
    return module


@pytest.fixture
def dropin(build: Build, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The distribution's package, from the build tree."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "torch_memory_saver"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(os.path.join(build.directory, "dropin"))
    module = importlib.import_module("torch_memory_saver")
    yield module
    for name in [each for each in sys.modules if each.partition(".")[0] == "torch_memory_saver"]:
        del sys.modules[name]


@pytest.fixture(params=["compat", "distribution"])
def module(request: pytest.FixtureRequest) -> types.ModuleType:
    module: types.ModuleType = amem.compat if request.param == "compat" else request.getfixturevalue("dropin")
    return module


@pytest.fixture
def torch_memory_saver(module: types.ModuleType) -> Saver:
    saver: Saver = module.torch_memory_saver
    return saver


@pytest.fixture
def whole_process(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TMS_INIT_ENABLE", "1")
    shim.stats('{"scope":"heap"}')
    _saver._scope.cache_clear()
    yield
    _saver._scope.cache_clear()


def shim_calls(shim: Shim) -> list[str]:
    return [each for each in shim.notes if each.split()[0] in ("begin", "end", "pause", "resume")]


def test_a_region_gets_what_torchs_ordinary_cache_has_free(torch: stub_torch.Torch, torch_memory_saver: Saver) -> None:
    cache = torch.cuda.cache
    cache.free(cache.allocate(600))
    with torch_memory_saver.region(tag="kv_cache"):
        cache.allocate(600)


def test_backup_decides_what_a_pause_does(shim: Shim, torch_memory_saver: Saver) -> None:
    with torch_memory_saver.region():
        pass
    with torch_memory_saver.region("weights", enable_cpu_backup=True):
        pass
    assert shim_calls(shim) == ["begin default 2", "end", "begin weights 1", "end"]


def test_one_tag(shim: Shim, torch_memory_saver: Saver) -> None:
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume(tag="weights")
    assert shim_calls(shim) == ["pause [weights] 0", "resume [weights] 0"]


def test_without_a_tag_all_but_nccls_and_the_heap(shim: Shim, torch_memory_saver: Saver) -> None:
    torch_memory_saver.pause()
    torch_memory_saver.resume()
    assert shim.notes == ["except nccl", "except heap", "pause [] 0", "except nccl", "except heap", "resume [] 0"]


def test_a_whole_process(shim: Shim, torch_memory_saver: Saver, whole_process: None) -> None:
    torch_memory_saver.pause()
    torch_memory_saver.pause("default")
    with torch_memory_saver.region(enable_cpu_backup=True):
        pass
    with torch_memory_saver.region("weights"):
        pass
    torch_memory_saver.resume()
    assert [each for each in shim.notes if "pool" not in each] == [
        "except nccl", "pause [] 0", "pause [heap] 0", "begin heap 1", "end", "begin weights 2", "end", "except nccl", "resume [] 0"]


def test_without_memory_there_is_nothing_to_do(shim: Shim, torch_memory_saver: Saver) -> None:
    shim.answer(amem.Code.NOT_FOUND, "no memory")
    torch_memory_saver.pause()
    torch_memory_saver.pause("empty")  # as there
    shim.answer(amem.Code.FAILED_PRECONDITION, "in transition")
    with pytest.raises(amem.FailedPreconditionError):
        torch_memory_saver.pause("weights")


def test_regions_within_regions(shim: Shim, torch_memory_saver: Saver) -> None:
    with torch_memory_saver.region("weights"):
        with torch_memory_saver.region("kv_cache"):
            pass
        shim.note("body")
    begins = [each for each in shim.notes if each.split()[0] in ("begin", "end", "body")]
    assert begins == ["begin weights 2", "end", "begin kv_cache 2", "end", "begin weights 2", "body", "end"]


def test_graphs_allocate_from_their_own_pool(shim: Shim, torch_memory_saver: Saver) -> None:
    with torch_memory_saver.cuda_graph("g", pool="p", stream="s", capture_error_mode="relaxed", tag="graph"):
        pass
    assert shim.notes == ["graph g p s relaxed", "begin graph 2", "end", "graph ends"]


def test_what_disable_is_around_is_not_brokered(shim: Shim, torch_memory_saver: Saver) -> None:
    with torch_memory_saver.disable():  # outside of any
        assert shim.notes == ["make pool1", "begin unbrokered", "use pool1"]
    with torch_memory_saver.region("weights", enable_cpu_backup=True):
        with torch_memory_saver.disable():
            assert shim.notes[-5:] == ["leave pool2", "end", "make pool3", "begin unbrokered", "use pool3"]
        assert shim.notes[-4:] == ["leave pool3", "end unbrokered", "begin weights 1", "use pool2"]
    assert shim.notes[-2:] == ["leave pool2", "end"]
    for number in (4, 4):  # one that is kept
        with torch_memory_saver.disable(dispose_mem_pool_after_use=False):
            assert shim.notes[-1] == f"use pool{number}"


def stretches(shim: Shim) -> list[str]:
    return [each for each in shim.notes if each.startswith(("begin", "end"))]


def test_disable_within_disable(shim: Shim, torch_memory_saver: Saver) -> None:
    with torch_memory_saver.region("weights"):
        with torch_memory_saver.disable():
            with torch_memory_saver.disable():
                pass
            with torch_memory_saver.region("other"):
                pass
    assert stretches(shim) == [
        "begin weights 2", "end", *["begin unbrokered", "end unbrokered"] * 3, "begin other 2", "end",
        "begin unbrokered", "end unbrokered", "begin weights 2", "end"]


def test_the_hook_librarys_own_calls(shim: Shim, torch_memory_saver: Saver, whole_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_memory_saver._ensure_initialized()
    cdll = torch_memory_saver._impl._binary_wrapper.cdll
    monkeypatch.setenv("TMS_INIT_ENABLE_CPU_BACKUP", "1")

    def state() -> tuple[bool, bytes, bool, bytes]:
        return (cdll.tms_get_interesting_region(), cdll.tms_get_current_tag(), cdll.tms_get_enable_cpu_backup(),
                cdll.tms_get_cpu_backup_backend())

    assert state() == (True, b"default", True, b"pinned")
    with torch_memory_saver.region("grads", enable_cpu_backup=False):
        assert state() == (True, b"grads", False, b"pinned")
        with torch_memory_saver.disable():
            assert not cdll.tms_get_interesting_region()
    with torch_memory_saver.region(enable_cpu_backup=True, cpu_backup_backend="mmap"):
        assert state() == (True, b"default", True, b"mmap")
    assert state() == (True, b"default", True, b"pinned")
    before = len(shim.notes)
    cdll.tms_set_interesting_region(False)
    cdll.tms_set_interesting_region(False)
    assert not cdll.tms_get_interesting_region()
    cdll.tms_set_interesting_region(True)
    assert shim.notes[before:] == ["begin unbrokered", "end unbrokered"]
    cdll.tms_pause(b"weights")
    assert shim.notes[-1] == "pause [weights] 0"
    monkeypatch.delenv("TMS_INIT_ENABLE")
    assert not cdll.tms_get_interesting_region()
    with pytest.raises(amem.FailedPreconditionError):
        cdll.tms_set_interesting_region(True)


def test_what_is_switched_off_in_a_region_ends_with_it(shim: Shim, torch_memory_saver: Saver) -> None:
    cdll = torch_memory_saver._impl._binary_wrapper.cdll
    with torch_memory_saver.region("grads"):
        cdll.tms_set_interesting_region(False)
    with torch_memory_saver.region("weights"):
        assert cdll.tms_get_interesting_region()
    with torch_memory_saver.disable():
        cdll.tms_set_interesting_region(False)
    assert stretches(shim) == [
        "begin grads 2", "begin unbrokered", "end unbrokered", "end", "begin weights 2", "end",
        "begin unbrokered", "end unbrokered"]


def test_a_region_begins_where_it_was_switched_off(shim: Shim, torch_memory_saver: Saver, whole_process: None) -> None:
    cdll = torch_memory_saver._impl._binary_wrapper.cdll
    cdll.tms_set_interesting_region(False)
    with torch_memory_saver.region("grads"):
        assert cdll.tms_get_interesting_region()
        cdll.tms_set_interesting_region(False)
        with torch_memory_saver.region("weights"):
            assert cdll.tms_get_interesting_region()
        assert not cdll.tms_get_interesting_region()
    assert not cdll.tms_get_interesting_region()
    cdll.tms_set_interesting_region(True)
    assert stretches(shim) == [
        "begin unbrokered", "end unbrokered",
        "begin grads 2", "begin unbrokered", "end unbrokered", "end", "begin weights 2", "end",
        "begin grads 2", "begin unbrokered", "end unbrokered", "end", "begin unbrokered", "end unbrokered"]


def test_backends(shim: Shim, torch_memory_saver: Saver) -> None:
    for backend in ("cpu", "pinned"):
        with torch_memory_saver.region(enable_cpu_backup=True, cpu_backup_backend=backend):
            pass
    refused: tuple[dict[str, Any], ...] = ({"enable_disk_backup": True}, {"enable_cpu_backup": True, "cpu_backup_backend": "disk"})
    for arguments in refused:
        with pytest.raises(amem.UnimplementedError, match="enable_cpu_backup=True"):
            with torch_memory_saver.region(**arguments):
                raise AssertionError("entered")
    with pytest.raises(ValueError, match="requires enable_cpu_backup"):
        with torch_memory_saver.region(cpu_backup_backend="cpu"):
            raise AssertionError("entered")
    with pytest.raises(ValueError, match="tape"):
        with torch_memory_saver.region(enable_cpu_backup=True, cpu_backup_backend="tape"):
            raise AssertionError("entered")
    with pytest.raises(amem.UnimplementedError):
        torch_memory_saver.set_disk_backup_dir("/tmp")


def test_attributes(shim: Shim, torch_memory_saver: Saver) -> None:
    assert torch_memory_saver.enabled
    for mode in ("preload", "torch"):
        torch_memory_saver.hook_mode = mode
    assert torch_memory_saver.hook_mode == "preload"
    with pytest.raises(amem.InvalidArgumentError):
        torch_memory_saver.hook_mode = "other"
    assert torch_memory_saver.retain_cpu_backup is False
    torch_memory_saver.retain_cpu_backup = True
    assert torch_memory_saver.retain_cpu_backup is True
    torch_memory_saver.retain_cpu_backup = False
    torch_memory_saver.memory_margin_bytes = 1 << 30
    assert shim.notes == ["margin 1073741824"]
    assert torch_memory_saver.memory_margin_bytes == 1 << 30
    with pytest.raises(amem.InvalidArgumentError):
        torch_memory_saver.memory_margin_bytes = -1


def test_retention_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMS_RETAIN_CPU_BACKUP", "1")
    assert amem.compat.TorchMemorySaver().retain_cpu_backup is True


def test_configure_subprocess(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AMEM_GROUP", "AMEM_GROUPID", "AMEM_SCOPE", "AMEM_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
    monkeypatch.setenv("AMEM_GROUP", "train")
    before = dict(os.environ)
    with amem.compat.configure_subprocess():
        assert os.environ["AMEM_GROUP"] == "train"
        assert os.environ["AMEM_SCOPE"] == "regions"
        assert os.environ["LD_PRELOAD"] == amem.shim_path() + ":/lib/other.so"
    assert dict(os.environ) == before
    monkeypatch.setenv("AMEM_SCOPE", "heap")
    with amem.compat.torch_memory_saver.configure_subprocess():
        assert os.environ["AMEM_SCOPE"] == "heap"


def test_the_distributions_hook_library(build: Build, dropin: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_memory_saver import utils

    hook = os.path.join(build.directory, "dropin", "torch_memory_saver_hook_mode_preload.abi3.so")
    assert str(utils.get_binary_path_from_package("torch_memory_saver_hook_mode_preload")) == hook
    assert os.path.samefile(utils.get_binary_path_from_package("torch_memory_saver_hook_mode_torch"), amem.shim_path())
    with pytest.raises(amem.NotFoundError, match="other"):
        utils.get_binary_path_from_package("other")
    for name in ("AMEM_GROUP", "NCCL_CUMEM_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LD_PRELOAD", f"/lib/other.so:{amem.shim_path()}")
    before = dict(os.environ)
    with dropin.configure_subprocess():
        assert os.environ["LD_PRELOAD"] == f"{hook}:/lib/other.so"
        assert "NCCL_CUMEM_ENABLE" not in os.environ
    assert dict(os.environ) == before
    monkeypatch.setenv("AMEM_GROUP", "train")
    with dropin.torch_memory_saver.configure_subprocess():
        assert os.environ["NCCL_CUMEM_ENABLE"] == "1"
    with utils.change_env("TMS_INIT_ENABLE", "1"):
        assert os.environ["TMS_INIT_ENABLE"] == "1"
    assert "TMS_INIT_ENABLE" not in os.environ


def test_the_classes_of_the_hook_modes(build: Build, dropin: types.ModuleType) -> None:
    """Programs derive from them or replace their functions, such as AReaL and Dynamo."""
    from torch_memory_saver.hooks.base import HookUtilBase
    from torch_memory_saver.hooks.mode_preload import HookUtilModePreload
    from torch_memory_saver.hooks.mode_torch import HookUtilModeTorch

    for mode, kind in (("preload", HookUtilModePreload), ("torch", HookUtilModeTorch)):
        made = HookUtilBase.create(hook_mode=mode)
        assert type(made) is kind and made.get_allocator() is None
        assert made.get_path_binary() == os.path.join(build.directory, "dropin", f"torch_memory_saver_hook_mode_{mode}.abi3.so")


def test_what_miles_looks_for_in_the_hook_library(dropin: types.ModuleType) -> None:
    """With --offload-train-target disk it refuses a library without this name. The shim warns, and the pool keeps the bytes."""
    from torch_memory_saver.utils import get_binary_path_from_package

    assert b"TMS_INIT_ENABLE_DISK_BACKUP" in get_binary_path_from_package("torch_memory_saver_hook_mode_preload").read_bytes()


@pytest.mark.parametrize("variable, kept", (("TMS_INIT_ENABLE_CPU_BACKUP", True), ("TMS_INIT_ENABLE_DISK_BACKUP", True), ("OTHER", False)))
def test_what_the_pool_keeps_of_a_whole_process(
        torch_memory_saver: Saver, whole_process: None, monkeypatch: pytest.MonkeyPatch, variable: str, kept: bool) -> None:
    monkeypatch.setenv(variable, "1")
    assert torch_memory_saver._impl._binary_wrapper.cdll.tms_get_enable_cpu_backup() is kept


def test_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch_memory_saver", raising=False)
    amem.compat.install()
    amem.compat.install()
    import torch_memory_saver as imported

    assert imported.torch_memory_saver is amem.compat.torch_memory_saver
    monkeypatch.setitem(sys.modules, "torch_memory_saver", types.ModuleType("torch_memory_saver"))
    with pytest.raises(amem.FailedPreconditionError):
        amem.compat.install()


class Tensor:
    """As much of a tensor as get_cpu_backup() asks about."""
    dtype = "float32"
    device = "cuda:0"
    shape = (2, 2)
    nbytes = 16

    def __init__(self, is_cuda: bool = True, contiguous: bool = True) -> None:
        self.is_cuda = is_cuda
        self.is_contiguous = lambda: contiguous
        self.stride = lambda: (1, 2)

    def data_ptr(self) -> int:
        return 0x7000


class CopyTensor:
    def __init__(self, shape: tuple[int, ...], dtype: str, device: str) -> None:
        assert (shape, dtype, device) == ((2, 2), "float32", "cpu")
        self.bytes = ctypes.create_string_buffer(16)

    def data_ptr(self) -> int:
        return ctypes.addressof(self.bytes)


class ViewTensor:
    def __init__(self, buffer: memoryview, dtype: str) -> None:
        assert dtype == "uint8" and buffer.readonly
        self.bytes = bytes(buffer)
        self.views: list[object] = []

    def view(self, what: object) -> ViewTensor:
        self.views.append(what)
        return self


def test_saved_bytes(shim: Shim, torch: stub_torch.Torch, torch_memory_saver: Saver) -> None:
    torch.uint8, torch.empty, torch.frombuffer = "uint8", CopyTensor, ViewTensor
    saved = b"saved bytes".ljust(16, b"\0")
    copy = torch_memory_saver.get_cpu_backup(Tensor())
    assert copy.bytes.raw == saved
    view = torch_memory_saver.get_cpu_backup(Tensor(), zero_copy=True)
    assert view.bytes == saved and view.views == ["float32", (2, 2)]
    shim.library.fake_backup(0)
    assert torch_memory_saver.get_cpu_backup(Tensor(), zero_copy=True).bytes.raw == saved
    assert shim.notes == ["read 28672 16", "view 28672 16", "view 28672 16", "read 28672 16"]
    for wrong in (Tensor(is_cuda=False), Tensor(contiguous=False)):
        with pytest.raises(amem.InvalidArgumentError):
            torch_memory_saver.get_cpu_backup(wrong)
    shim.answer(amem.Code.NOT_FOUND, "on its device")
    assert torch_memory_saver.get_cpu_backup(Tensor()) is None
    assert torch_memory_saver.get_cpu_backup(Tensor(), zero_copy=True) is None
    shim.answer(amem.Code.FAILED_PRECONDITION, "dropped")
    with pytest.raises(amem.FailedPreconditionError, match="dropped"):
        torch_memory_saver.get_cpu_backup(Tensor())
