from kernelcast.farm.local import LocalFarm as LocalFarm

__all__: list[str]
