from typing import Any, TypedDict

import torch

input_t = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor], dict[str, Any], torch.Tensor]
output_t = torch.Tensor


class TestSpec(TypedDict):
    rows: int
    dim: int
    hidden: int
    masked: bool
    distribution: str
    seed: int
