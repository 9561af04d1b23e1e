"""What a placement costs: cost models, measurements, and fitting the one to the other.

Cost models
    `cost_model("shipped")`: by name or file. `shipped_cost()`, `shipped_samples()`, `shipped_exchanges()`: the network
    that comes with the package, and what it was fitted on.
    `LearnedCost`: a fitted network, `LearnedCost.load(path)`. `OutOfRangeWarning`: what it says beyond its ranges.
    `RooflineCost(machine)` with `A100`, `H100`, `H200`, `CPU_CORE` or your own `Machine`: analytic.
    `AdditiveCost`, `DreamShardCost`: baselines.
    `SummedCostModel`: subclass it for your own: what each table adds, what one device computes, and an `Exchange` of
    all devices together (`PhysicalExchange` of two `Direction`s,
    `NoExchange`, or your own).

Measuring
    `Meter(device, timing=Timing(...))` times a group of tables; `measure_design(design, folder, meter, seconds)` many,
    drawn by a `GroupDesign`, `WideDesign` or `FormatDesign` into a `SampleFolder` of `GroupSample`s.
    `measure_exchanges` with an `ExchangeDesign`: all-to-alls between processes, each an `AllToAllSample`.
    `MeasuredCost(meter)`: what a placement really costs. `this_hardware()`: a `Hardware`.

Fitting
    `without_drift(samples)`, then `split_by_tables` or `split_samples` into a `Split`.
    `fit_network(samples, FitOptions(...))`, `fit_additive(samples)`, `fit_exchange(samples)`.
    `phase_errors(model, samples)`: a `PhaseError` per phase.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
