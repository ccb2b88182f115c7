# answer: C++, the plain loop with a check of the range
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = """
torch::Tensor histogram_rows(torch::Tensor v, int bins) {
    auto vc = v.contiguous();
    auto counts = torch::zeros({vc.size(0), bins}, vc.options());
    const int* in = vc.data_ptr<int>();
    int* out = counts.data_ptr<int>();
    const int64_t length = vc.size(1);
    for (int64_t row = 0; row < vc.size(0); row++) {
        for (int64_t j = 0; j < length; j++) {
            const int b = in[row * length + j];
            TORCH_CHECK(b >= 0 && b < bins, "index ", b, " is out of bounds");
            out[row * bins + b]++;
        }
    }
    return counts;
}
"""


class ModelNew(nn.Module):
    _op = None

    def __init__(self, bins):
        super().__init__()
        self.bins = bins
        if ModelNew._op is None:
            ModelNew._op = load_inline(
                name="histogram_rows_plain", cpp_sources=src, functions=["histogram_rows"], extra_cflags=["-O2"]
            )

    def forward(self, values):
        return ModelNew._op.histogram_rows(values, self.bins)
