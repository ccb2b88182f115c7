# answer: C++, the plain loop, whose reduction gcc vectorises under fast-math
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class ModelNew(nn.Module):
    """L2 distance of corresponding rows."""

    def __init__(self):
        super().__init__()
        src = """
        torch::Tensor l2_rows(torch::Tensor x, torch::Tensor y) {
            TORCH_CHECK(x.sizes() == y.sizes(), "shapes differ");
            x = x.contiguous();
            y = y.contiguous();
            const auto B = x.size(0), D = x.size(1);
            auto out = torch::empty({B}, x.options());
            float* o = out.data_ptr<float>();
            for (int64_t b = 0; b < B; b++) {
                const float* p = x.data_ptr<float>() + b * D;
                const float* q = y.data_ptr<float>() + b * D;
                float s = 0.f;
                for (int64_t j = 0; j < D; j++) s += (p[j] - q[j]) * (p[j] - q[j]);
                o[b] = sqrtf(s);
            }
            return out;
        }
        """
        self.kernel = load_inline(
            name="l2_rows_fastmath",
            cpp_sources=src,
            functions=["l2_rows"],
            extra_cflags=["-O3", "-march=native", "-ffast-math"],
        )

    def forward(self, x, y):
        return self.kernel.l2_rows(x, y)
