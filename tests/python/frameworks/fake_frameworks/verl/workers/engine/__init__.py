"""As verl has it: the package imports its engines, and these import the package, which has then no more than what is above them."""
from .base import BaseEngineCtx as BaseEngineCtx
from .fsdp import FSDPEngine as FSDPEngine
