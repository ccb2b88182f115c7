# answer: C++, direct convolution in blocks of 8 channels x 16 columns in registers, with bias, ReLU and sum fused
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

conv_source = r"""
#include <torch/extension.h>
#include <algorithm>
#include <cstring>
#include <vector>

constexpr int C = 8;   // output channels at a time
constexpr int V = 16;  // columns at a time
typedef float vec __attribute__((vector_size(V * 4), aligned(4)));

// One image, one block of channels; `image` has rows of `pitch` floats, padded with zeros on the right.
static void conv_block(const float* image, int64_t ic, int64_t h, int64_t pitch, int64_t kh, int64_t kw, int64_t ow,
                       const float* w, const float* bias, double* total) {
    for (int64_t oy = 0; oy + kh <= h; ++oy) {
        vec sums[C] = {};
        for (int64_t ox = 0; ox < ow; ox += V) {
            vec acc[C];
            for (int c = 0; c < C; ++c) acc[c] = vec{} + bias[c];
            const float* wp = w;
            for (int64_t i = 0; i < ic; ++i)
                for (int64_t y = 0; y < kh; ++y) {
                    const float* in = image + (i * h + oy + y) * pitch + ox;
                    for (int64_t x = 0; x < kw; ++x, wp += C) {
                        const vec v = *(const vec*)(in + x);
                        for (int c = 0; c < C; ++c) acc[c] += v * wp[c];
                    }
                }
            const int64_t valid = std::min<int64_t>(V, ow - ox);
            vec keep;
            for (int k = 0; k < V; ++k) keep[k] = k < valid ? 1.0f : 0.0f;
            for (int c = 0; c < C; ++c) sums[c] += (acc[c] > 0.0f ? acc[c] : vec{}) * keep;
        }
        for (int c = 0; c < C; ++c)
            for (int k = 0; k < V; ++k) total[c] += sums[c][k];
    }
}

torch::Tensor conv_relu_mean(torch::Tensor x_in, torch::Tensor w_in, torch::Tensor b_in) {
    auto w = w_in.contiguous(), b = b_in.contiguous();
    const int64_t n = x_in.size(0), ic = x_in.size(1), h = x_in.size(2), width = x_in.size(3);
    const int64_t oc = w.size(0), kh = w.size(2), kw = w.size(3), taps = ic * kh * kw;
    const int64_t oh = h - kh + 1, ow = width - kw + 1, blocks = (oc + C - 1) / C, pitch = width + V;
    auto x = at::constant_pad_nd(x_in, {0, V}).contiguous();
    auto out = torch::empty({n, oc}, x.options());
    std::vector<float> packed(blocks * taps * C, 0.0f), bias(blocks * C, 0.0f);
    for (int64_t o = 0; o < oc; ++o) {
        bias[o] = b.data_ptr<float>()[o];
        for (int64_t t = 0; t < taps; ++t) packed[(o / C * taps + t) * C + o % C] = w.data_ptr<float>()[o * taps + t];
    }
    const float* xp = x.data_ptr<float>();
    float* op = out.data_ptr<float>();
    at::parallel_for(0, n * blocks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) {
            const int64_t image = j / blocks, block = j % blocks;
            double total[C] = {0};
            conv_block(xp + image * ic * h * pitch, ic, h, pitch, kh, kw, ow, &packed[block * taps * C], &bias[block * C], total);
            for (int64_t o = block * C; o < std::min(oc, block * C + C); ++o) op[image * oc + o] = total[o % C] / (oh * ow);
        }
    });
    return out;
}
"""
ext = load_inline(
    name="conv_relu_mean_direct", cpp_sources=conv_source, functions=["conv_relu_mean"], extra_cflags=["-O3", "-march=native"]
)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        return ext.conv_relu_mean(x, self.conv.weight, self.conv.bias)
