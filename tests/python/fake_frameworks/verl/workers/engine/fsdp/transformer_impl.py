"""An engine whose memory leaves by verl's functions, which copy; here they say so."""
copied = []


def offload_fsdp_model_to_cpu(model: object, empty_cache: bool = True) -> None:
    copied.append(model)


def load_fsdp_model_to_gpu(model: object) -> None:
    copied.append(model)


def offload_fsdp_optimizer(optimizer: object) -> None:
    copied.append(optimizer)


def load_fsdp_optimizer(optimizer: object, device_id: int) -> None:
    copied.append(optimizer)


class FSDPEngine:
    is_param_offload_enabled = True

    def __init__(self, module: object, optimizer: object) -> None:
        self.module, self.optimizer = module, optimizer

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        if device == "cpu":
            offload_fsdp_model_to_cpu(self.module)
            if optimizer:
                offload_fsdp_optimizer(self.optimizer)
        else:
            load_fsdp_model_to_gpu(self.module)
            if optimizer:
                load_fsdp_optimizer(self.optimizer, 0)
