"""Two groups, train and rollout, that take turns."""
from sim_node.ctl import Answer
from sim_node.node import Node


def states(node: Node) -> tuple[str, str]:
    """Those of train and of rollout at one moment."""
    of = node.ctl.states()
    return of["train"], of["rollout"]


def lines(answer: Answer, group: str, phase: str | None = None) -> list[int]:
    """The numbers of the lines of progress about a group."""
    return [i for i, line in enumerate(answer.lines)
            if line["group"] == group and (phase is None or line["phase"] == phase)]
