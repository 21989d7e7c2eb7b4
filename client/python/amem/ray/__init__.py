"""amem.ray: amem on the nodes of a Ray job, for its controller. docs/ray.md is the manual.

    with amem.ray.Cluster(placement_group, pool="64GiB") as cluster:
        ranks = [Trainer.options(num_gpus=0.5, **cluster.options(bundle, "train")).remote() for bundle in range(4)]
        cluster.swap("rollout", "train")

It requires the extra `ray` of amem's wheel. `import amem` does not import it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amem import _later

if TYPE_CHECKING:
    from amem.ray._cluster import Cluster

__all__ = ["Cluster"]


_LATER = {"Cluster": "amem.ray._cluster"}


def __getattr__(name: str) -> Any:
    # The supervisor and the certificates are of use without Ray, in tests for example.
    return _later.attribute("amem.ray", name, _LATER)
