from .fit import (
    PhaseError as PhaseError,
)
from .fit import (
    fit_additive as fit_additive,
)
from .fit import (
    fit_exchange as fit_exchange,
)
from .fit import (
    fit_network as fit_network,
)
from .fit import (
    phase_errors as phase_errors,
)
from .learned import LearnedCost as LearnedCost
from .measuring.all_to_all import ExchangeDesign as ExchangeDesign
from .measuring.all_to_all import measure_exchanges as measure_exchanges
from .measuring.all_to_all_samples import AllToAllSample as AllToAllSample
from .measuring.designs import GroupDesign as GroupDesign
from .measuring.drift import without_drift as without_drift
from .measuring.format_design import FormatDesign as FormatDesign
from .measuring.hardware import Hardware as Hardware
from .measuring.hardware import this_hardware as this_hardware
from .measuring.measured_cost import MeasuredCost as MeasuredCost
from .measuring.meter import (
    Meter as Meter,
)
from .measuring.meter import (
    Timing as Timing,
)
from .measuring.meter import (
    measure_design as measure_design,
)
from .measuring.samples import GroupSample as GroupSample
from .measuring.samples import SampleFolder as SampleFolder
from .measuring.wide_design import WideDesign as WideDesign
from .named import cost_model as cost_model
from .networks.dreamshard_network import DreamShardCost as DreamShardCost
from .networks.training import FitOptions as FitOptions
from .pricing.additive import AdditiveCost as AdditiveCost
from .pricing.ranges import OutOfRangeWarning as OutOfRangeWarning
from .pricing.roofline import RooflineCost as RooflineCost
from .pricing.roofline_machines import (
    A100 as A100,
)
from .pricing.roofline_machines import (
    CPU_CORE as CPU_CORE,
)
from .pricing.roofline_machines import (
    H100 as H100,
)
from .pricing.roofline_machines import (
    H200 as H200,
)
from .pricing.roofline_machines import (
    Machine as Machine,
)
from .pricing.summed import SummedCostModel as SummedCostModel
from .shipped import (
    shipped_cost as shipped_cost,
)
from .shipped import (
    shipped_exchanges as shipped_exchanges,
)
from .shipped import (
    shipped_samples as shipped_samples,
)
from .splits import (
    Split as Split,
)
from .splits import (
    split_by_tables as split_by_tables,
)
from .splits import (
    split_samples as split_samples,
)
