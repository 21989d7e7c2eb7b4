"""megatron.core: a model is its buffers, an optimizer its main parameters and moments."""
import os

__version__ = os.environ.get("FAKE_MEGATRON_VERSION", "0.19.2")
