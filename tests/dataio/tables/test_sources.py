"""Table sets by name."""

import pytest

from shardgym.dataio.tables.sources import tables_from_source
from shardgym.problem.errors import InputError


def test_table_sources(tmp_path):
    assert len(tables_from_source("criteo-kaggle", 0)) == 26
    assert {t.dim for t in tables_from_source("dlrm:7", 0, 32)} == {32}
    for source, message in [("dlrm:none", "dlrm:50"), ("alibaba", "is unknown"), (str(tmp_path / "no.csv"), "no such")]:
        with pytest.raises(InputError, match=message):
            tables_from_source(source, 0)
