"""Problem folders made from files of other benchmarks, KernelBench's and GPU MODE's, and back.

The files are a stranger's code: they run in a confined process (`_probe`), which says what the
arguments and results are for given sizes. Everything in a folder follows from such reports.
"""

from kernelcast.porting.folder import Imported
from kernelcast.porting.gpumode import import_gpumode, submission_file
from kernelcast.porting.kernelbench import import_kernelbench

__all__ = ["Imported", "import_gpumode", "import_kernelbench", "submission_file"]
