"""Fixtures of the add-ons' tests: those of the integration tests."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "integration"))

from sim_node.fixtures import bare_node, build, installed, node, node_with, pytest_addoption, pytest_runtest_makereport, pytest_runtest_setup, stage  # noqa: E402

__all__ = ["bare_node", "build", "installed", "node", "node_with", "pytest_addoption", "pytest_runtest_makereport", "pytest_runtest_setup", "stage"]
