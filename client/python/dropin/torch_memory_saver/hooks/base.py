"""The names of the hook modes."""
from typing import Literal

HookMode = Literal["preload", "torch"]
