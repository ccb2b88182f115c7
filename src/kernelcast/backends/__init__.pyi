from kernelcast.backends.cpp import CppBackend as CppBackend
from kernelcast.backends.cuda import CudaBackend as CudaBackend
from kernelcast.backends.opencl import OpenClBackend as OpenClBackend
from kernelcast.backends.replay import Recorded as Recorded
from kernelcast.backends.replay import Recording as Recording
from kernelcast.backends.replay import ReplayBackend as ReplayBackend
from kernelcast.backends.triton import TritonBackend as TritonBackend

__all__: list[str]
