# answer: the text stops in the middle of a call, as an answer that ran out of tokens
# expect: compile_error
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = """
torch::Tensor chain_cpu(torch::Tensor x, double scale, double shift) {
    auto y = torch::empty_like(x);
    const float* in = x.data_ptr<float>();
    float* out = y.data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); ++i) {
        float v = in[i] * scale + shift;
        out[i] = std::tanh(0.5f * v * (1.0f + std::erf(v * 0.70710678f))) + in[i];
    }
    return y;
}
"""

chain_cpu = load_inline(
    name="chain_cpu",
    cpp_sources=cpp_source,
    functions=["chain_cpu"],
    extra_cflags=["-O3",
