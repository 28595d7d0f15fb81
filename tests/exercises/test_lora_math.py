"""`lora-math`: right answers that are not the model answer keep every point."""

import torch
from torch import nn

from tests.exercises.assignments import earning_everything


def forward_with_modules(x, weight, bias, lora_A, lora_B, alpha):
    """Layers from torch.nn: the output has a gradient."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return layer(x) + alpha / len(lora_A) * (x @ lora_A.T @ lora_B.T)


def forward_merged(x, weight, bias, lora_A, lora_B, alpha):
    """One product with the merged weight, in double precision."""
    merged = weight.double() + alpha / len(lora_A) * (lora_B.double() @ lora_A.double())
    return nn.functional.linear(x.double(), merged, None if bias is None else bias.double())


class NewParameter(nn.Module):
    """Freezes the base layer, and merges into a new parameter instead of the old one."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scaling = alpha / rank
        self.original = None
        self.lora_A = nn.Parameter(torch.ones(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        update = nn.functional.linear(nn.functional.linear(x, self.lora_A), self.lora_B)
        return self.base(x) + (0 if self.original is not None else self.scaling * update)

    def merge(self):
        if self.original is None:
            self.original = self.base.weight.data
            self.base.weight.data = self.original + self.scaling * (self.lora_B @ self.lora_A).data

    def unmerge(self):
        if self.original is not None:
            self.base.weight.data = self.original
            self.original = None


OTHERS = {
    "forward": [forward_with_modules, forward_merged],
    "merge": [NewParameter],
}
test_another_right_answer_keeps_every_point = earning_everything("lora-math", OTHERS)
