"""Two groups, train and rollout, that take turns."""


def states(node):
    return node.ctl.state("train"), node.ctl.state("rollout")


def lines(answer, group, phase=None):
    """The numbers of the lines of progress about a group."""
    return [i for i, line in enumerate(answer.lines)
            if line["group"] == group and (phase is None or line["phase"] == phase)]
