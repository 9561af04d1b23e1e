"""shardgym: place recommender embedding tables on devices, on a cost model fitted to measured kernels."""

from shardgym.registration import register_all
from shardgym.version import __version__

__all__ = ["__version__"]

register_all()
