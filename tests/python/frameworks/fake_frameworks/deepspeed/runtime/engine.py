"""An engine whose checkpoints are files of what it reads."""
import pathlib
import pickle
from typing import Any

from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer as DeepSpeedZeroOptimizer


def _read(value: Any) -> Any:
    """As torch.save(): it copies from where the tensors are."""
    if isinstance(value, dict):
        return {key: _read(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_read(each) for each in value]
    return value.cpu() if hasattr(value, "cpu") else value


class DeepSpeedEngine:
    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def save_checkpoint(self, save_dir: str, tag: str | None = None) -> bool:
        saved = pickle.dumps([_read(self.module_state_dict()), _read(self.optimizer.state_dict())])
        pathlib.Path(save_dir, tag or "latest").write_bytes(saved)
        return True

    def load_checkpoint(self, load_dir: str, tag: str | None = None) -> None:
        self.optimizer.load_state_dict(pickle.loads(pathlib.Path(load_dir, tag or "latest").read_bytes())[1:])

    def module_state_dict(self) -> dict[str, Any]:
        return {str(at): each for at, each in enumerate(self.optimizer.bit16_groups_flat)}

    def save_16bit_model(self, save_dir: str) -> bool:
        return bool(_read(self.module_state_dict()))
