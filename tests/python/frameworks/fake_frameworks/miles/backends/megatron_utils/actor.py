from collections.abc import Callable
from torch_memory_saver import torch_memory_saver

from miles.utils.reloadable_process_group import destroy_process_groups, reload_process_groups


class MegatronTrainRayActor:
    def sleep(self) -> None:
        destroy_process_groups()
        torch_memory_saver.pause()

    def wake_up(self) -> None:
        torch_memory_saver.resume()
        reload_process_groups()

    def update_weights(self, update: Callable[[], object]) -> None:
        reload_process_groups()
        with torch_memory_saver.disable():
            update()
        destroy_process_groups()
