from kernelcast.report.console import Progress as Progress
from kernelcast.report.console import summary as summary
from kernelcast.report.console import summary_table as summary_table
from kernelcast.report.figures import draw_best_so_far as draw_best_so_far
from kernelcast.report.figures import draw_comparison as draw_comparison
from kernelcast.report.figures import draw_evaluations as draw_evaluations
from kernelcast.report.kernel import KernelRecord as KernelRecord

__all__: list[str]
