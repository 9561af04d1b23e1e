"""The user page's code runs as it stands."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "recd.md"


def test_the_page_s_code_runs_from_top_to_bottom():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    exec("\n".join(blocks), {})
