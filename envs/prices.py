"""What a table's format costs in accuracy: a small table of points, which a user may replace.

A point is one hundredth of a percentage point of a click model's accuracy, lost by holding ONE table in the format.

The tensor-train prices rest on TT-Rec (arXiv 2101.11714, section 6): compressing 3 to 7 tables of Criteo Kaggle loses
0.03% to 0.3% of accuracy, that is 1 to 4 points per table, more at lower rank. fp16 and int8 are not measured: they are
set so that int8 is cheaper than any tensor train and fp16 is nearly free, as is commonly seen. How much a table really
loses depends on its data and on the order of its rows; measure it, and give your own prices as `prices`.
"""

from collections.abc import Mapping
from pathlib import Path

from shardgym.problem.errors import InputError
from shardgym.problem.files import read_json

FORMATS = ("fp32", "fp16", "int8", "tt32", "tt16")
"""Formats that may be chosen: dense by dtype, and fp32 tensor trains of rank 32 and 16."""

DEFAULT_PRICES: dict[str, float] = {"fp32": 0.0, "fp16": 0.1, "int8": 0.5, "tt32": 2.0, "tt16": 4.0}

DEFAULT_BUDGET = 0.6
"""Points that a table may cost on average: every table in int8 is within it, every table as a tensor train is not."""


def read_prices(prices: Mapping[str, float] | str | Path | None) -> dict[str, float]:
    """Prices a table by format.

    Args:
        prices: a mapping, a JSON file that holds one, or None for `DEFAULT_PRICES`; formats left out keep theirs.

    Raises:
        InputError: an unknown format, or a price that is no number of 0 or more.
    """
    if prices is None:
        return dict(DEFAULT_PRICES)
    where = "prices"
    if isinstance(prices, str | Path):
        where = str(prices)
        prices = read_json(Path(prices), "give a JSON object from format to price")
    if not isinstance(prices, Mapping):
        raise InputError(f"{where}: is a {type(prices).__name__}; give an object from format to price")
    for name, price in prices.items():
        if name not in FORMATS:
            raise InputError(f"{where}: format {name!r} is unknown; use {', '.join(FORMATS)}")
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
            raise InputError(f"{where}: the price of {name!r} is {price!r}; give a number of 0 or more")
    return {**DEFAULT_PRICES, **{name: float(price) for name, price in prices.items()}}
