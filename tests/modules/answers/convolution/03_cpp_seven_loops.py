# answer: C++, the textbook's seven loops; right, and slower than the library
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = """
torch::Tensor conv_naive(torch::Tensor x, torch::Tensor w, torch::Tensor bias) {
    x = x.contiguous();
    const int N = x.size(0), I = x.size(1), H = x.size(2), W = x.size(3);
    const int O = w.size(0), K = w.size(2), L = w.size(3);
    auto out = torch::zeros({N, O}, x.options());
    auto xa = x.accessor<float, 4>();
    auto wa = w.accessor<float, 4>();
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) {
            double total = 0;
            for (int r = 0; r + K <= H; r++)
                for (int c = 0; c + L <= W; c++) {
                    float v = bias.data_ptr<float>()[o];
                    for (int i = 0; i < I; i++)
                        for (int k = 0; k < K; k++)
                            for (int l = 0; l < L; l++) v += xa[n][i][r + k][c + l] * wa[o][i][k][l];
                    if (v > 0) total += v;
                }
            out[n][o] = total / ((double)(H - K + 1) * (W - L + 1));
        }
    return out;
}
"""

conv_naive = load_inline(name="conv_naive", cpp_sources=cpp_source, functions=["conv_naive"], extra_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        return conv_naive.conv_naive(x, self.conv.weight, self.conv.bias)
