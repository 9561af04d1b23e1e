"""Pictures: every mode of every id, and a recorded video."""

import gymnasium as gym
import numpy as np
import pytest

from shardgym.envs.viewer import MEMORY_COLOUR, PHASE_COLOURS
from shardgym.problem.costs import FORWARD
from shardgym.registration import ENTRY_POINTS
from tests.envs.cases import additive, small_task


def make(name, render_mode, **keywords):
    return gym.make(f"shardgym:{name}", tasks=small_task(), cost_model=additive(), render_mode=render_mode, **keywords)


def play_all(env, seed=0):
    _, info = env.reset(seed=seed)
    done, frames = False, [env.render()]
    while not done:
        _, _, done, _, info = env.step(int(np.flatnonzero(info["action_mask"])[0]))
        frames.append(env.render())
    return frames, info


def pixels(frame, colour):
    return int((frame == np.array(colour, np.uint8)).all(axis=-1).sum())


@pytest.mark.parametrize("name", list(ENTRY_POINTS))
def test_bars_grow_with_cost_and_memory(name):
    frames, _ = play_all(make(name, "rgb_array"))
    for frame in frames:
        assert frame.shape == frames[0].shape
        assert frame.dtype == np.uint8
    memory = [pixels(frame, MEMORY_COLOUR) for frame in frames]
    forward = [pixels(frame, PHASE_COLOURS[FORWARD]) for frame in frames]
    assert memory == sorted(memory)
    assert memory[-1] > memory[0]
    assert forward[-1] > forward[0]


@pytest.mark.parametrize("name", list(ENTRY_POINTS))
def test_text_tells_the_table_in_hand_and_every_device(name):
    env = make(name, "ansi")
    frames, info = play_all(env)
    first = env.unwrapped.episode.encoded.option(0, 0).piece.name
    assert f"in hand: {first}" in frames[0]
    assert "0 of 8 tables placed" in frames[0]
    assert "8 of 8 tables placed" in frames[-1]
    assert f"{info['step_ms']:.2f} ms" in frames[-1]
    assert all(f"│      {d} │" in frames[-1] for d in range(3))


def test_human_mode_draws_at_every_step(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    env = make("shardgym/TablePlacement-v1", "human")
    _, info = env.reset(seed=0)
    env.step(int(np.flatnonzero(info["action_mask"])[0]))
    window = env.unwrapped._viewer._window
    assert pixels(np.asarray(window[1].get_array()), MEMORY_COLOUR) > 0
    env.close()
    env.close()


def test_a_video_is_recorded(tmp_path):
    pytest.importorskip("moviepy", reason="RecordVideo needs moviepy")
    folder = str(tmp_path / "videos")
    env = gym.wrappers.RecordVideo(make("shardgym/TablePlacement-v1", "rgb_array"), folder, disable_logger=True)
    play_all(env)
    env.close()
    (video,) = tmp_path.glob("videos/*.mp4")
    assert video.stat().st_size > 1000


def test_a_vector_twin_renders_each_episode():
    keywords = {"tasks": small_task(), "cost_model": additive(), "num_envs": 3}
    env = gym.make_vec("shardgym/TablePlacement-v1", render_mode="rgb_array", **keywords)
    env.reset(seed=0)
    env.step(np.array([0, 1, 2]))
    frames = env.render()
    assert len(frames) == 3
    assert (frames[0] != frames[2]).any()
    assert gym.make_vec("shardgym/TablePlacement-v1", **keywords).render() is None
