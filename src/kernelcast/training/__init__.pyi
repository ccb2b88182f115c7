from kernelcast.training.folds import Fold as Fold
from kernelcast.training.folds import cross_validate as cross_validate
from kernelcast.training.trees import check_publishable as check_publishable
from kernelcast.training.trees import train_source_model as train_source_model

__all__: list[str]
