from kernelcast.training.environments import verifiers_taskset as verifiers_taskset
from kernelcast.training.environments import write_verl_rows as write_verl_rows
from kernelcast.training.export import adapter_command as adapter_command
from kernelcast.training.export import export_gguf as export_gguf
from kernelcast.training.export import export_merged as export_merged
from kernelcast.training.folds import Fold as Fold
from kernelcast.training.folds import cross_validate as cross_validate
from kernelcast.training.licences import check_publishable as check_publishable
from kernelcast.training.models import load_base as load_base
from kernelcast.training.trees import train_source_model as train_source_model

__all__: list[str]
