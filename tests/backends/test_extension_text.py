"""Texts of extensions: what no compiler accepts is named, and right ones are let alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelcast.backends._extension_text import Extension

KERNEL = """
#include <torch/extension.h>
__global__ void scale_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
torch::Tensor scale(torch::Tensor x, int64_t n, const double by) {
    auto y = torch::empty_like(x);
    scale_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""
RIGHT = Extension(
    name="scale",
    cpp=("torch::Tensor scale(torch::Tensor x, int64_t n, double by);",),
    cuda=(KERNEL,),
    functions=("scale",),
    whole=True,
)
BINDING = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &scale, "scales"); }'


def changed(old: str, new: str) -> Extension:
    assert old in KERNEL
    return replace(RIGHT, cuda=(KERNEL.replace(old, new),))


@pytest.mark.parametrize(
    ("extension", "fault"),
    [
        (replace(RIGHT, cpp=()), "cpp_sources do not declare"),
        (replace(RIGHT, functions=("scale", "shift")), "names shift"),
        (replace(RIGHT, cuda=("",)), "not defined"),
        (replace(RIGHT, cpp=(*RIGHT.cpp, BINDING)), "two PYBIND11_MODULE"),
        (replace(RIGHT, cpp=(KERNEL,), cuda=()), "is no C++"),
        (changed("return y;", "C10_CUDA_KERNEL_LAUNCH_CHECK(); return y;"), "without #include"),
        (changed("2.0f * x[i]", "cub::Max()(x[i], 2.0f)"), "cub:: is used without"),
        (changed("return y;\n}", "return y;\n"), "never closed"),
        (changed("[i];\n}", "[i]);\n}"), "closes nothing"),
        (changed("torch::Tensor x, int64_t n", "const torch::Tensor& x, int n"), "is declared"),
    ],
)
def test_what_no_compiler_accepts_is_named(extension: Extension, fault: str) -> None:
    assert fault in extension.fault


@pytest.mark.parametrize(
    "extension",
    [
        RIGHT,
        replace(
            RIGHT,
            cpp=(f"at::Tensor scale(at::Tensor t, int64_t, double);{BINDING}",),
            functions=None,
        ),
        replace(RIGHT, cpp=("torch::Tensor scale(torch::Tensor x, long n, double by = 1.0);",)),
        changed("#include <torch", "#include <ATen/cuda/CUDAContext.h>\n#include <torch"),
        changed("return y;", 'TORCH_CHECK(n > 0, "no } and no <<< in strings"); /* ( */ return y;'),
        replace(RIGHT, functions=None, cpp=("#define D(f) f##_cuda(); <",), whole=False),
    ],
)
def test_right_texts_are_let_alone(extension: Extension) -> None:
    assert not extension.fault


@pytest.mark.parametrize(
    ("name", "kinds", "fault"),
    [
        ("scale", ["tensor", "int", "float"], ""),
        ("scale", ["tensor", "int", "int"], ""),
        ("scale", ["tensor", "int"], "takes 3 arguments, and is called with 2"),
        ("scale", ["None", "int", "float"], "argument 1 is None, not Tensor"),
        ("scale", ["tensor", "float", "float"], "argument 2 is float, not int64_t"),
        ("forward", ["tensor"], "binds no forward"),
    ],
)
def test_a_call_that_pybind_refuses_is_named(name: str, kinds: list[str], fault: str) -> None:
    found = RIGHT.call_fault(name, kinds)
    assert fault in found if fault else not found


def test_a_binding_that_names_its_arguments_may_be_called_with_fewer() -> None:
    named = 'PYBIND11_MODULE(X, m) { m.def("run", &scale, py::arg("x"), py::arg("n") = 1); }'
    extension = replace(RIGHT, functions=None, cpp=(*RIGHT.cpp, named))
    assert not extension.fault
    assert not extension.call_fault("run", ["tensor"])
