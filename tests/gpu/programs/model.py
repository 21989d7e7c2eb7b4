"""A transformer of the usual kind, of any size, with all that could differ between two runs left out of it.

For training: forward() over whole sequences. For generating: step() with a cache of keys and values.
"""

import torch
from torch import nn
from torch.nn import functional

HEAD = 64


class Cache:
    """Keys and values of every layer for sequences of up to `length` tokens."""

    def __init__(self, shape, sequences, length, device, dtype):
        heads = shape["width"] // HEAD
        size = (shape["layers"], 2, sequences, heads, length, HEAD)
        self.data = torch.zeros(size, device=device, dtype=dtype)

    def bytes(self):
        return self.data.numel() * self.data.element_size()


def attend(query, key, value, mask):
    """Plain products: the fused kernels choose among themselves, and not all of them are deterministic."""
    scores = query @ key.transpose(-2, -1) * HEAD ** -0.5
    return torch.softmax(scores.masked_fill(mask, float("-inf")).float(), dim=-1).to(value.dtype) @ value


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def heads(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, width // HEAD, HEAD)
        return parts.permute(2, 0, 3, 1, 4).unbind(0)

    def finish(self, x, attended):
        batch, heads, length, size = attended.shape
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, heads * size))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))

    def forward(self, x, mask):
        return self.finish(x, attend(*self.heads(x), mask))

    def step(self, x, cache, begin):
        """As forward() for the tokens from `begin` on; `cache`: this layer's, [2, sequences, heads, length, HEAD]."""
        query, key, value = self.heads(x)
        end = begin + x.shape[1]
        cache[0, :, :, begin:end] = key
        cache[1, :, :, begin:end] = value
        behind = torch.arange(begin, end, device=x.device)[:, None]
        mask = torch.arange(end, device=x.device)[None, :] > behind
        return self.finish(x, attend(query, cache[0, :, :, :end], cache[1, :, :, :end], mask))


class Transformer(nn.Module):
    """`shape`: {"width", "layers", "vocabulary", "length"}."""

    def __init__(self, shape):
        super().__init__()
        width = shape["width"]
        self.shape = dict(shape)
        self.tokens = nn.Embedding(shape["vocabulary"], width)
        self.positions = nn.Embedding(shape["length"], width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(shape["layers"])])
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape["vocabulary"], bias=False)

    def embed(self, tokens, begin=0):
        # A product with a one-hot matrix would be deterministic in any case; the embedding's backward is so as well.
        places = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        return self.tokens(tokens) + self.positions(places)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.last(x))

    def loss(self, tokens):
        """Of predicting each token from those before it."""
        scores = self(tokens[:, :-1])
        return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]).float(), tokens[:, 1:].reshape(-1))

    def step(self, tokens, cache, begin):
        """Scores of the token after the last of these, which stand at `begin` and behind it."""
        x = self.embed(tokens, begin)
        for layer, block in enumerate(self.blocks):
            x = block.step(x, cache.data[layer], begin)
        return self.head(self.last(x[:, -1]))


def parameters_of(shape):
    """How many parameters a model of this shape has."""
    width = shape["width"]
    block = 12 * width * width + 13 * width
    return (2 * shape["vocabulary"] + shape["length"]) * width + shape["layers"] * block + 2 * width


def shape_for(state_bytes, width, vocabulary, length):
    """The shape whose weights, gradients and AdamW state in float32 come closest to so many bytes, from below."""
    shape = {"width": width, "layers": 0, "vocabulary": vocabulary, "length": length}
    per_layer = parameters_of({**shape, "layers": 1}) - parameters_of(shape)
    shape["layers"] = max(1, (state_bytes // 16 - parameters_of(shape)) // per_layer)
    return shape


def deterministic():
    """Two runs with the same seeds give the same bits. Set CUBLAS_WORKSPACE_CONFIG before (torch_rank does)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def seeded_model(shape, seed, device):
    """The same weights in every process, whatever random numbers were used before."""
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.device(device):
        model = Transformer(shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
    return model


def seeded_tokens(shape, sequences, length, seed, device):
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randint(shape["vocabulary"], (sequences, length), device=device, generator=generator)
