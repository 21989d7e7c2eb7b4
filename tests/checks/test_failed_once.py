"""tests/failed_once.py names what ctest has repeated with success, and nothing else."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_what_passed_only_when_it_was_repeated_is_named(tmp_path):
    tests = {"flaky": "test -e flag || { touch flag; exit 1; }", "good": "true", "bad": "false"}
    (tmp_path / "CTestTestfile.cmake").write_text("\n".join(f'add_test({name} sh -c "{script}")' for name, script in tests.items()))
    ran = subprocess.run(["ctest", "--test-dir", tmp_path, "--repeat", "until-pass:2"], capture_output=True, text=True, timeout=60, check=False)
    said = subprocess.run([sys.executable, "-B", ROOT / "tests/failed_once.py"], input=ran.stdout, capture_output=True, text=True, timeout=60, check=True)
    assert ran.returncode != 0
    assert said.stdout == "WARNING: 1 tests failed, and passed when they were repeated: flaky\n"


def test_nothing_is_said_of_tests_that_passed():
    line = "1/2 Test #14: Suite/Name.Of/1 .............   Passed    0.10 sec\n"
    said = subprocess.run([sys.executable, "-B", ROOT / "tests/failed_once.py"], input=line, capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == ""
