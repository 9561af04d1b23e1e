"""Cost models by name: the one place where a name, a path or None becomes a cost model."""

from pathlib import Path

from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.hardware import this_hardware
from shardgym.costmodel.pricing.roofline import RooflineCost
from shardgym.costmodel.pricing.roofline_machines import MACHINES
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.costmodel.shipped import shipped_cost
from shardgym.problem.errors import InputError

NAMES = ("shipped", *(f"roofline:{machine}" for machine in MACHINES))
"""What may be given beside a file."""


def cost_model(name_or_path: SummedCostModel | str | Path | None = None, any_hardware: bool = True) -> SummedCostModel:
    """A cost model.

    Args:
        name_or_path: "shipped" or None (the network fitted on the shipped measurements), "roofline:h100" (analytic, no
            measurement; of a machine in `NAMES`), the file of a fitted model, or a cost model, returned as it is.
        any_hardware: accept a file that was fitted on another machine than this.

    Raises:
        InputError: none of these, or a file of other hardware.
    """
    if isinstance(name_or_path, SummedCostModel):
        return name_or_path
    if name_or_path is None or name_or_path == "shipped":
        return shipped_cost()
    if isinstance(name_or_path, str) and name_or_path.startswith("roofline"):
        machine = MACHINES.get(name_or_path.removeprefix("roofline").removeprefix(":"))
        if machine is None:
            raise InputError(f"cost model {name_or_path!r}: names no machine; give one of {', '.join(NAMES[1:])}")
        return RooflineCost(machine)
    if not isinstance(name_or_path, str | Path):
        raise InputError(
            f"cost model: is a {type(name_or_path).__name__}; give {', '.join(map(repr, NAMES))}, the file of a fitted "
            "model, or a SummedCostModel"
        )
    if not Path(name_or_path).exists():
        raise InputError(
            f"cost model {str(name_or_path)!r}: is no file; give {', '.join(map(repr, NAMES))} or a file of "
            "`shardgym fit`"
        )
    return LearnedCost.load(Path(name_or_path), here=None if any_hardware else this_hardware())
