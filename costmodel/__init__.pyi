from .exchange_fit import fit_exchange as fit_exchange
from .fit import (
    PhaseError as PhaseError,
    fit_additive as fit_additive,
    fit_network as fit_network,
    phase_errors as phase_errors,
)
from .learned import LearnedCost as LearnedCost
from .measuring.all_to_all import ExchangeDesign as ExchangeDesign, measure_exchanges as measure_exchanges
from .measuring.all_to_all_samples import AllToAllSample as AllToAllSample
from .measuring.designs import GroupDesign as GroupDesign
from .measuring.drift import without_drift as without_drift
from .measuring.format_design import FormatDesign as FormatDesign
from .measuring.hardware import Hardware as Hardware, this_hardware as this_hardware
from .measuring.measured_cost import MeasuredCost as MeasuredCost
from .measuring.meter import Meter as Meter, Timing as Timing, measure_design as measure_design
from .measuring.samples import GroupSample as GroupSample, SampleFolder as SampleFolder
from .measuring.wide_design import WideDesign as WideDesign
from .named import cost_model as cost_model
from .networks.dreamshard_network import DreamShardCost as DreamShardCost
from .networks.training import FitOptions as FitOptions
from .pricing.additive import AdditiveCost as AdditiveCost
from .pricing.exchange import (
    Direction as Direction,
    Exchange as Exchange,
    NoExchange as NoExchange,
    PhysicalExchange as PhysicalExchange,
)
from .pricing.ranges import OutOfRangeWarning as OutOfRangeWarning
from .pricing.roofline import RooflineCost as RooflineCost
from .pricing.roofline_machines import (
    A100 as A100,
    CPU_CORE as CPU_CORE,
    H100 as H100,
    H200 as H200,
    Machine as Machine,
)
from .pricing.summed import SummedCostModel as SummedCostModel
from .shipped import (
    shipped_cost as shipped_cost,
    shipped_exchanges as shipped_exchanges,
    shipped_samples as shipped_samples,
)
from .splits import Split as Split, split_by_tables as split_by_tables, split_samples as split_samples
