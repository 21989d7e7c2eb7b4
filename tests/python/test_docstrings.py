"""The docstrings of what programs and frameworks call: each says what its arguments and its result are, in Google's form."""
import ast
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "amem"
# Frameworks get these objects, and call their methods.
FOR_FRAMEWORKS = {"Allocator", "Backend", "Calls"}
OWN = ("_ending.py", "_requests.py", "_shim.py", "_wire.py")  # the package's own, under the names of what programs call
FROM_BROKERS = (PACKAGE / "_connection" / "calls.py", PACKAGE / "aio" / "_calls.py")  # a program makes none of these objects itself
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def exported() -> set[str]:
    """The names in each module's __all__, and the public classes of modules without one."""
    names = set(FOR_FRAMEWORKS)
    for path, tree in TREES.items():
        lists = [each.value for each in tree.body if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "__all__"]
        names |= {name for each in lists for name in ast.literal_eval(each)}
        if path.name in ("errors.py", "messages.py", "nccl.py"):
            names |= {each.name for each in tree.body if isinstance(each, (ast.ClassDef, ast.FunctionDef))}
    return names


def documented() -> Iterator[tuple[str, Definition]]:
    """(where, definition) of what programs call."""
    names = exported()
    for path, tree in TREES.items():
        for each in tree.body:
            if not isinstance(each, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if each.name.startswith("_") or each.name not in names or path.name in OWN:
                continue
            yield f"{path.relative_to(PACKAGE)}: {each.name}", each
            for method in each.body if isinstance(each, ast.ClassDef) else ():
                if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                # An overload's docstring is that of the function; a setter's is that of its property.
                marks = {getattr(mark, "id", getattr(mark, "attr", "")) for mark in method.decorator_list}
                made = method.name == "__init__" and path not in FROM_BROKERS
                if not marks & {"overload", "setter"} and (made or not method.name.startswith("_")):
                    yield f"{path.relative_to(PACKAGE)}: {each.name}.{method.name}", method


DOCUMENTED = dict(documented())


def test_there_is_something_to_check() -> None:
    assert {"_rank.py: pause", "broker.py: Broker.__init__", "aio/_broker.py: Broker.pause", "errors.py: Error", "messages.py: GroupInfo",
            "_connection/calls.py: Operation.cancel"} <= set(DOCUMENTED)
    of_add_ons = {"ray/_cluster.py: Cluster.swap", "vllm/_worker.py: Worker.sleep", "vllm/_backend.py: Backend.suspend",
                  "_saver.py: Calls.tms_pause", "verl/__init__.py: Verl.hooks"}
    assert {each for each in of_add_ons if (PACKAGE / each.partition(":")[0]).exists()} <= set(DOCUMENTED)


@pytest.mark.parametrize("where", DOCUMENTED)
def test_arguments_and_result(where: str) -> None:
    definition = DOCUMENTED[where]
    text = ast.get_docstring(definition)
    assert text, "it has no docstring"
    if isinstance(definition, ast.ClassDef):
        return
    given = definition.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs) if each.arg not in ("self", "cls")]
    names += [f"{stars}{each.arg}" for stars, each in (("*", given.vararg), ("**", given.kwarg)) if each is not None]
    section = text.partition("Args:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    ([*\w]+):", section, re.MULTILINE) == names
    result = ast.unparse(definition.returns) if definition.returns is not None else "None"
    is_property = any(getattr(each, "id", "") == "property" for each in definition.decorator_list)
    assert ("Returns:\n" in text) == (result not in ("None", "NoReturn") and not is_property), result


# How amem.aio's calls differ from those that they have their docstrings from.
FOR_ASYNCIO = (
    ("Blocks until", "Returns when"), ("A function that this thread calls for", "A plain function that the event loop calls for"),
    ("An iterator", "An asynchronous iterator"),
    *((f"Starts {name}() and does not wait.", f"Prepares {name}(). The first step of the iteration starts it.")
      for name in ("pause", "resume", "swap")),
    ("when this call returns", "when `async with` has entered it"))


@pytest.mark.parametrize("where", [each for each in DOCUMENTED if re.match(r"(broker|cluster)\.py: \w+\.", each)])
def test_the_same_for_asyncio(where: str) -> None:
    text = ast.get_docstring(DOCUMENTED[where])
    assert text
    for sync, asynchronous in FOR_ASYNCIO:
        text = text.replace(sync, asynchronous)
    assert ast.get_docstring(DOCUMENTED[f"aio/_{where}"]) == text


def test_the_form() -> None:
    if (program := shutil.which("pydocstyle")) is not None:
        command = [program]
    elif importlib.util.find_spec("pydocstyle") is not None:
        command = [sys.executable, "-m", "pydocstyle"]
    else:
        pytest.skip("pydocstyle is not installed (deploy/deps.sh installs it)")
    # The tests above say what has to have a docstring.
    done = subprocess.run([*command, "--convention=google", "--add-ignore=D100,D101,D102,D103,D104,D105,D106,D107", *FILES],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
