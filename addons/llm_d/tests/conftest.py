"""Fixtures of the integration tests."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3, "tests", "integration"))

from sim_node.fixtures import bare_node, build, installed, node, node_with, pytest_addoption, pytest_runtest_makereport  # noqa: E402

__all__ = ["bare_node", "build", "installed", "node", "node_with", "pytest_addoption", "pytest_runtest_makereport"]
