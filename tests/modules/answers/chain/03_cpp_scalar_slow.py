# answer: C++ without flags, one element at a time through the double-precision library; right, and slower
# expect: ok
import torch
import torch.nn as nn
import torch.utils.cpp_extension

cpp_src = '''
torch::Tensor elementwise_chain(torch::Tensor input, double scale, double shift) {
    auto x = input.contiguous();
    auto out = torch::empty_like(x);
    auto n = x.numel();
    auto* src = x.data_ptr<float>();
    auto* dst = out.data_ptr<float>();
    for (int64_t i = 0; i < n; ++i) {
        double y = double(src[i]) * scale + shift;
        y = y * 0.5 * (1.0 + std::erf(y * M_SQRT1_2));
        dst[i] = static_cast<float>(std::tanh(y) + src[i]);
    }
    return out;
}
'''

elementwise_chain = torch.utils.cpp_extension.load_inline(
    name="elementwise_chain",
    cpp_sources=cpp_src,
    functions=["elementwise_chain"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super(ModelNew, self).__init__()
        self.scale = scale
        self.shift = shift
        self.op = elementwise_chain

    def forward(self, x):
        return self.op.elementwise_chain(x, self.scale, self.shift)
