"""torch_memory_saver over amem, with the module layout of the original. docs/torch_memory_saver.md of amem lists the differences."""
from importlib import metadata


def _check_amem() -> None:
    """pip does not know the dependency amem: it would install any package of that name from a package index."""
    try:
        wanted = metadata.version("torch_memory_saver").partition("+amem")[2]
    except metadata.PackageNotFoundError:  # in a checkout
        wanted = ""
    wheel = f"amem {wanted}".strip()
    remedy = f"Install the wheel of {wheel} from the folder of this wheel: pip install ./amem_gpu-*.whl"
    try:
        from amem import __version__
    except ModuleNotFoundError as error:
        if error.name != "amem":
            raise
        raise ModuleNotFoundError(f"this torch_memory_saver is a part of {wheel}, which is not installed. {remedy}", name="amem") from None
    if wanted not in ("", __version__):
        raise ImportError(f"this torch_memory_saver is a part of {wheel}, and amem {__version__} is installed. {remedy}")


_check_amem()

from torch_memory_saver.entrypoint import TorchMemorySaver
from torch_memory_saver.hooks.mode_preload import configure_subprocess

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]

torch_memory_saver = TorchMemorySaver()
