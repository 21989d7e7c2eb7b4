"""As verl has it."""
from .transformer_impl import FSDPEngine as FSDPEngine
