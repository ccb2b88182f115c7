// The part of PyTorch's own torch/extension.h that extensions of tensors use.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/utils/pybind.h>
