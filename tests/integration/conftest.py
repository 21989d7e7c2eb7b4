"""Fixtures of the integration tests, and the logs of all processes with every failure."""
from sim_node.fixtures import bare_node, build, installed, node, node_with, pytest_addoption, pytest_runtest_makereport, pytest_runtest_setup, stage

__all__ = ["bare_node", "build", "installed", "node", "node_with", "pytest_addoption", "pytest_runtest_makereport", "pytest_runtest_setup", "stage"]
