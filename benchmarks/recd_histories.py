"""KuaiRand's events (Gao et al., 2022) as training rows with watch histories, clustered by user."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.ops import window_positions

HISTORY_KEYS = ["video_history", "author_history"]


def watch_histories(path: Path, window: int) -> KeyedJaggedTensor:
    """A row per event: the videos, and their authors, that its user had watched, at most `window`, oldest first.

    A video counts as watched when it played at all. Rows are sorted by user, then time.
    """
    table = pq.read_table(path, columns=["user_id", "video_id", "author_id", "time_ms", "play_time_ms"])
    columns = {name: table[name].to_numpy() for name in table.column_names}
    order = np.lexsort((columns["time_ms"], columns["user_id"]))
    user, video, author, played = (columns[k][order] for k in ("user_id", "video_id", "author_id", "play_time_ms"))
    watched = np.flatnonzero(played > 0)
    before = np.concatenate([[0], np.cumsum(played > 0)])  # watched events before each row, all users
    first_row = np.searchsorted(user, user)  # where the row's user begins
    ends = before[:-1]
    starts = np.maximum(ends - window, before[first_row])
    lengths = torch.from_numpy(ends - starts)
    positions = watched[window_positions(torch.from_numpy(starts), lengths).numpy()]
    values = np.concatenate([video[positions], author[positions]])
    return KeyedJaggedTensor(HISTORY_KEYS, torch.from_numpy(values), lengths=lengths.repeat(2))
