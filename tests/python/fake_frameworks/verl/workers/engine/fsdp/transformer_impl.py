"""An engine whose memory leaves by verl's functions, which copy; here they say so."""
copied = []


def offload_fsdp_model_to_cpu(model, empty_cache=True):
    copied.append(model)


def load_fsdp_model_to_gpu(model):
    copied.append(model)


def offload_fsdp_optimizer(optimizer):
    copied.append(optimizer)


def load_fsdp_optimizer(optimizer, device_id):
    copied.append(optimizer)


class FSDPEngine:
    is_param_offload_enabled = True

    def __init__(self, module, optimizer):
        self.module, self.optimizer = module, optimizer

    def to(self, device, model=True, optimizer=True, grad=True):
        if device == "cpu":
            offload_fsdp_model_to_cpu(self.module)
            if optimizer:
                offload_fsdp_optimizer(self.optimizer)
        else:
            load_fsdp_model_to_gpu(self.module)
            if optimizer:
                load_fsdp_optimizer(self.optimizer, 0)
