# answer: C++, each row of bfloat16 in one function: maximum, sum in double, loss and gradient
# expect: ok
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <cmath>
#include <vector>

std::vector<torch::Tensor> cross_entropy(torch::Tensor logits, torch::Tensor labels,
                                         torch::Tensor grad_loss) {
    const int64_t rows = logits.size(0), columns = logits.size(1);
    auto loss = torch::empty({rows}, grad_loss.options());
    auto gradient = torch::empty_like(logits);
    const auto* x = logits.data_ptr<at::BFloat16>();
    const int64_t* label = labels.data_ptr<int64_t>();
    const float* scale = grad_loss.data_ptr<float>();
    float* losses = loss.data_ptr<float>();
    auto* y = gradient.data_ptr<at::BFloat16>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const auto* in = x + row * columns;
            auto* out = y + row * columns;
            float largest = static_cast<float>(in[0]);
            for (int64_t c = 1; c < columns; ++c)
                largest = std::max(largest, static_cast<float>(in[c]));
            double sum = 0.0;
            for (int64_t c = 0; c < columns; ++c)
                sum += std::exp(static_cast<float>(in[c]) - largest);
            losses[row] = largest + static_cast<float>(std::log(sum)) - static_cast<float>(in[label[row]]);
            const float share = static_cast<float>(1.0 / sum);
            for (int64_t c = 0; c < columns; ++c) {
                const float p = std::exp(static_cast<float>(in[c]) - largest) * share;
                out[c] = (p - (c == label[row] ? 1.0f : 0.0f)) * scale[row];
            }
        }
    });
    return {loss, gradient};
}
"""

extension = load_inline(
    name="cross_entropy_a_row",
    cpp_sources=SOURCE,
    functions=["cross_entropy"],
    extra_cflags=["-O3", "-march=native"],
)


def kernel(logits, labels, grad_loss):
    return tuple(extension.cross_entropy(logits, labels, grad_loss))
