"""What the list of cases promises to ctest, the bundle and the docs. Run by pytest, without a GPU and without PyTorch."""

import pathlib
import re
import sys
import types

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "programs"
sys.path += [str(HERE), str(PROGRAMS)]

import cases  # noqa: E402, F401
import cases_deep  # noqa: E402, F401
import cases_job  # noqa: E402, F401
import cases_nccl  # noqa: E402, F401
import cases_nvls  # noqa: E402
import cases_pools  # noqa: E402, F401
import cases_restart  # noqa: E402, F401
import cases_space  # noqa: E402, F401
import cases_swap  # noqa: E402, F401
import cases_torch  # noqa: E402
import cases_turns  # noqa: E402, F401
import cases_vllm  # noqa: E402
import registry  # noqa: E402

CTEST_LIMIT_S = 720
BROKER_START_S = 140  # with the pool for eight GPUs
SCRIPTS = sorted([*HERE.glob("*.py"), *PROGRAMS.rglob("*.py")])


def test_names_are_unique_and_fit_ctest():
    names = [name for name, _, _ in registry.all_cases()]
    assert len(names) == len(set(names))
    assert all(re.fullmatch("[a-z0-9_]+", name) for name in names)


@pytest.mark.parametrize(("name", "function", "limit"), registry.all_cases(), ids=lambda each: str(each)[:20])
def test_a_case_is_described_and_ends_before_ctest_ends_it(name, function, limit):
    assert function.__doc__ and "\n" not in function.__doc__, f"{name} needs one line"
    assert limit + BROKER_START_S <= CTEST_LIMIT_S


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda each: each.name)
def test_scripts_compile(script):
    compile(script.read_text(encoding="utf-8"), str(script), "exec")


@pytest.mark.parametrize("file", [*sorted(HERE.glob("cases*.py")), HERE / "run_cases.py"],
                         ids=lambda each: each.name)
def test_programs_that_cases_start_exist(file):
    for name in re.findall(r'"([\w/]+\.py)"', file.read_text(encoding="utf-8")):
        assert (PROGRAMS / name).is_file(), name


def test_the_pages_on_compatibility_have_every_case_that_pauses():
    docs = HERE.parents[2] / "docs"
    page = "".join((docs / name).read_text(encoding="utf-8") for name in ("versions.md", "history/versions-2026.md"))
    alone = {"broker_footprint", "broker_afterwards", "launch_cost", "without_shim", "disabled", "broker_absent",
             "broker_required"}
    missing = [name for name, _, _ in registry.all_cases() if name not in alone and f"`{name}`" not in page]
    assert not missing


def test_a_program_that_skips_itself_only_under_amem_is_a_failure():
    with pytest.raises(cases_torch.Failure, match="only under amem: no kernels"):
        cases_torch.not_only_here(cases_torch.Skip("no kernels"), lambda: None)

    def alone():
        raise cases_torch.Skip("no kernels without amem either")
    with pytest.raises(cases_torch.Skip, match="either"):
        cases_torch.not_only_here(cases_torch.Skip("no kernels"), alone)


def test_losses_are_compared_with_a_second_run_only_when_they_differ():
    runs = iter([[1.0, 2.0], [1.0, 2.5]])
    assert "bit for bit" in cases_torch.check_curve({"losses": [1.0, 2.0]}, lambda: next(runs))
    runs = iter([[1.0, 2.0], [1.0, 2.5]])
    assert "differ by 0.5" in cases_torch.check_curve({"losses": [1.0, 2.25]}, lambda: next(runs))
    runs = iter([[1.0, 2.0], [1.0, 2.0]])
    with pytest.raises(cases_torch.Failure, match="losses"):
        cases_torch.check_curve({"losses": [1.0, 2.25]}, lambda: next(runs))


def test_vllms_times_are_judged_beside_its_own():
    own = {"first": 4548, "sleep": 170, "wake": 225, "left": 1707}
    assert cases_vllm.too_much(own, {"first": 227, "sleep": 170, "wake": 157, "left": 1003}) == []
    wrong = cases_vllm.too_much(own, {"first": 228, "sleep": 171, "wake": 158, "left": 1004})
    assert [each.split()[0] for each in wrong] == ["first", "sleep", "wake", "left"]


@pytest.mark.parametrize(("gpus", "tp"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (16, 8)])
def test_vllm_takes_as_many_gpus_as_its_model_can_be_divided_among(gpus, tp):
    assert cases_vllm.tp_of(types.SimpleNamespace(gpus=types.SimpleNamespace(count=lambda: gpus))) == tp


def test_nvls_runs_only_for_whoever_asks_for_it():
    for environment in ({}, {"NCCL_NVLS_ENABLE": "0"}, {"NCCL_NVLS_ENABLE": "2"}):
        with pytest.raises(cases_nvls.Skip, match="NCCL_NVLS_ENABLE=1"):
            cases_nvls.check_asked_for(environment)
    cases_nvls.check_asked_for({"NCCL_NVLS_ENABLE": "1"})


@pytest.mark.parametrize(("look", "why"), [("print(1); print(0)", "1 of 2 GPUs"), ("print(1)", "1 of 2 GPUs"),
                                           ("raise OSError('no driver')", "no driver"), ("print(1); print(1)", None)])
def test_nvls_needs_multicast_on_each_gpu(look, why):
    if why is None:
        return cases_nvls.check_supported(2, look)
    with pytest.raises(cases_nvls.Skip, match=why):
        cases_nvls.check_supported(2, look)


def test_nvls_is_shown_by_nccl_and_by_what_the_driver_has_bound(tmp_path):
    (tmp_path / "log").write_text("h:1:1 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels\n"
                                  "h:1:1 [0] NCCL INFO 24 coll channels, 0 collnet channels, 0 nvls channels, 32 p2p channels\n")
    (tmp_path / "trace").write_text("0.1 multicast bind at=0 n=2097152 rc=0\n0.2 multicast bind at=0 n=2097152 rc=1\n"
                                    "0.3 multicast unbind at=0 n=2097152 rc=0\n")
    assert cases_nvls.nvls_channels([tmp_path / "log"]) == [16, 0]
    assert cases_nvls.bindings([tmp_path / "trace"]) == (1, 1)
