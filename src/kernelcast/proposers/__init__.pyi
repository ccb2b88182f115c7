from kernelcast.proposers.llm import LlmProposer as LlmProposer
from kernelcast.proposers.pool import PoolProposer as PoolProposer
from kernelcast.proposers.template import TemplateProposer as TemplateProposer
from kernelcast.proposers.template import configured_kernel as configured_kernel
from kernelcast.proposers.tuner import TunerProposer as TunerProposer

__all__: list[str]
