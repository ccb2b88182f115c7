from kernelcast.farm.local import LocalFarm as LocalFarm
from kernelcast.farm.ray import RayFarm as RayFarm

__all__: list[str]
