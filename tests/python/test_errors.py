"""Errors, and what the calls refuse before they ask anybody."""
import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import amem
from amem import errors
from amem._arguments import form_number, format_number, guest_policy, milliseconds, policy_number, tag_list
from conftest import Python


def test_every_code_has_an_error() -> None:
    for code in amem.Code:
        if code is amem.Code.OK:
            continue
        error = errors.error_of(code, "rank 3 did not come")
        assert isinstance(error, amem.Error) and isinstance(error, RuntimeError)
        assert (error.code, error.text, str(error)) == (code, "rank 3 did not come", "rank 3 did not come")
    assert type(errors.error_of(5, "x")) is amem.NotFoundError
    assert type(errors.error_of(9, "x")) is amem.FailedPreconditionError
    assert type(errors.error_of(15, "x")) is amem.DataLossError
    assert type(errors.error_of(2, "x")) is amem.Error


@pytest.mark.parametrize("kind, python", [
    (amem.DeadlineExceededError, TimeoutError),
    (amem.InvalidArgumentError, ValueError),
    (amem.PermissionDeniedError, PermissionError),
])
def test_errors_are_also_pythons(kind: type[amem.Error], python: type[Exception]) -> None:
    with pytest.raises(python) as caught:
        raise errors.error_of(kind.code, "rank 3 did not come")
    assert type(caught.value) is kind and isinstance(caught.value, amem.Error)
    for original in (kind("rank 3 did not come"), kind("rank 3 did not come", amem.Code.ABORTED)):
        for error in (original, copy.copy(original), copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            assert type(error) is kind and error.args == ("rank 3 did not come",)
            assert (error.code, error.text, str(error)) == (original.code, "rank 3 did not come", "rank 3 did not come")
            assert getattr(error, "errno", None) is None and getattr(error, "filename", None) is None


def test_no_error_is_taken_for_that_of_a_cancelled_task() -> None:
    assert not hasattr(amem, "CancelledError")
    assert not issubclass(amem.OperationCancelledError, asyncio.CancelledError)
    assert type(errors.error_of(1, "x")) is amem.OperationCancelledError


def test_an_unknown_code_is_unknown_and_a_text_is_never_empty() -> None:
    error = errors.error_of(99, "")
    assert error.code is amem.Code.UNKNOWN
    assert str(error) == "UNKNOWN"


def test_tags() -> None:
    assert tag_list(None) == []
    assert tag_list("weights") == ["weights"]
    assert tag_list(("weights", "kv_cache")) == ["weights", "kv_cache"]
    assert tag_list(iter(["a"])) == ["a"]
    for bad in ([], "", ["a", ""], ["x" * 32], [str(n) for n in range(65)]):
        with pytest.raises(amem.InvalidArgumentError):
            tag_list(bad)


def test_times() -> None:
    assert milliseconds(None) == 0  # the default of the other side
    assert milliseconds(0) == 1
    assert milliseconds(2.5) == 2500
    assert milliseconds(1e12) == (1 << 32) - 1
    for bad in (-1, float("nan")):
        with pytest.raises(amem.InvalidArgumentError):
            milliseconds(bad)


def test_choices_are_names_or_members() -> None:
    assert (guest_policy(None), guest_policy("pin"), guest_policy(amem.GuestPolicy.REFUSE)) == (0, 1, 2)
    assert (policy_number("discard"), policy_number(amem.Policy.KEEP)) == (2, 1)
    assert (form_number("sparse"), form_number(amem.Form.AUTO)) == (3, 1)
    assert (format_number("prometheus"), format_number(amem.MetricsFormat.OPENMETRICS)) == (2, 1)
    wrong: tuple[tuple[Callable[[Any], int], object, str], ...] = (
        (guest_policy, "wait", "pin or refuse"), (policy_number, 1, "keep or discard"),
        (policy_number, amem.Policy.UNSPECIFIED, "keep or discard"), (policy_number, amem.Form.DENSE, "keep or discard"),
        (form_number, "zip", "auto, dense or sparse"), (format_number, "xml", "openmetrics or prometheus"))
    for number, bad, said in wrong:
        with pytest.raises(amem.InvalidArgumentError, match=said):
            number(bad)


@pytest.mark.parametrize("name", ["", "../etc", ".hidden", "-x", "a b", "x" * 64])
def test_group_names(name: str) -> None:
    with pytest.raises(amem.InvalidArgumentError):
        amem.set_group(name)
    with pytest.raises(amem.InvalidArgumentError):
        amem.environment(name)


def test_nothing_heavy_is_imported(python: Python) -> None:
    script = """
        import sys, amem, amem.compat, amem.nccl
        assert not {"torch", "grpc", "google"} & set(sys.modules), sorted(sys.modules)
        assert "amem.messages" not in sys.modules
        amem.Policy
        assert not {"torch", "grpc", "google"} & set(sys.modules), sorted(sys.modules)
        amem.Broker
        assert "grpc" in sys.modules
        assert "torch" not in sys.modules
        try:
            amem.nothing
        except AttributeError:
            print("good")
    """
    assert python.run(script) == "good\n"
