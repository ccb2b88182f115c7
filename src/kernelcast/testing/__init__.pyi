from kernelcast.testing.contracts import BackendContract as BackendContract
from kernelcast.testing.contracts import FarmContract as FarmContract
from kernelcast.testing.contracts import ForecasterContract as ForecasterContract
from kernelcast.testing.contracts import PolicyContract as PolicyContract
from kernelcast.testing.contracts import ProposerContract as ProposerContract
from kernelcast.testing.contracts import StoreContract as StoreContract
from kernelcast.testing.contracts import StrategyContract as StrategyContract
from kernelcast.testing.fakes import FAKE_DEVICE as FAKE_DEVICE
from kernelcast.testing.fakes import BrokenBackend as BrokenBackend
from kernelcast.testing.fakes import RendezvousBackend as RendezvousBackend
from kernelcast.testing.fakes import SyntheticBackend as SyntheticBackend
from kernelcast.testing.fakes import example_gate as example_gate
from kernelcast.testing.fakes import example_history as example_history
from kernelcast.testing.fakes import example_tuning as example_tuning
from kernelcast.testing.fakes import make_candidate as make_candidate
from kernelcast.testing.fakes import make_estimate as make_estimate
from kernelcast.testing.fakes import make_kernel as make_kernel
from kernelcast.testing.fakes import make_query as make_query
from kernelcast.testing.fakes import make_request as make_request
from kernelcast.testing.fakes import make_view as make_view
from kernelcast.testing.fakes import synthetic_kernels as synthetic_kernels
from kernelcast.testing.fakes import synthetic_problem as synthetic_problem

__all__: list[str]
