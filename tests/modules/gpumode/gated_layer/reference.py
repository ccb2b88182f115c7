import torch
import torch.nn.functional as F
from task import input_t, output_t
from utils import DeterministicContext, make_match_reference


def ref_kernel(data: input_t) -> output_t:
    x, mask, weights, config, out = data
    with DeterministicContext():
        normal = F.layer_norm(
            x, (config["dim"],), weights["norm.weight"], weights["norm.bias"], config["eps"]
        )
        gate = torch.sigmoid(F.linear(normal, weights["gate.weight"]))
        values = F.linear(normal, weights["values.weight"])
        out[...] = gate * values * mask[:, None]
    return out


def generate_input(
    rows: int, dim: int, hidden: int, masked: bool, distribution: str, seed: int
) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.empty(rows, dim, device="cuda")
    if distribution == "normal":
        x.normal_(0.0, 1.0, generator=gen)
    else:
        x.cauchy_(0.0, 2.0, generator=gen)
    mask = torch.ones(rows, device="cuda")
    if masked:
        mask = torch.randint(0, 2, (rows,), device="cuda", generator=gen).float()
    weights = {
        "norm.weight": torch.randn(dim, device="cuda", generator=gen),
        "norm.bias": torch.randn(dim, device="cuda", generator=gen),
        "gate.weight": torch.randn(hidden, dim, device="cuda", generator=gen) / dim**0.5,
        "values.weight": torch.randn(hidden, dim, device="cuda", generator=gen) / dim**0.5,
    }
    out = torch.empty(rows, hidden, device="cuda")
    return x, mask, weights, {"dim": dim, "hidden": hidden, "eps": 1e-5}, out


check_implementation = make_match_reference(ref_kernel, rtol=2e-2, atol=1e-3)
