from kernelcast.forecasters.cascade import CascadeForecaster as CascadeForecaster
from kernelcast.forecasters.critic import CriticForecaster as CriticForecaster
from kernelcast.forecasters.emulated import EmulatedForecaster as EmulatedForecaster
from kernelcast.forecasters.llm import LlmForecaster as LlmForecaster
from kernelcast.forecasters.recalibrate import RecalibratedForecaster as RecalibratedForecaster
from kernelcast.forecasters.roofline import RooflineForecaster as RooflineForecaster
from kernelcast.forecasters.space import SpaceForecaster as SpaceForecaster
from kernelcast.forecasters.trees import TreesForecaster as TreesForecaster

__all__: list[str]
