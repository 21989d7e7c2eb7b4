"""A simulated GPU node for tests: the simulated driver, amemd, amemctl, and ranks that play NCCL."""
from sim_node.broker import Broker
from sim_node.child import LOCK, SERVICE_THREAD, SLEEP, Child, Died, eventually, patience
from sim_node.combinations import chosen
from sim_node.ctl import Ctl, Operation
from sim_node.fixtures import has_add_on
from sim_node.job import Job, Rank
from sim_node.node import MIB, Build, Node
from sim_node.program import Program
from sim_node.puppet import Puppet
from sim_node.user import NOBODY, as_user

__all__ = [
    "LOCK", "MIB", "NOBODY", "SERVICE_THREAD", "SLEEP", "Broker", "Build", "Child", "Ctl", "Died", "Job", "Node", "Operation", "Program", "Puppet", "Rank",
    "as_user", "chosen", "eventually", "has_add_on", "patience"]
