"""Stages that are not done twice."""

import pytest

from shardgym.cli.resume import Stages


def test_a_stage_is_done_again_only_when_inputs_or_outputs_change(tmp_path):
    output, done = tmp_path / "out", []

    def work():
        done.append(1)
        output.write_text("x")

    def run(inputs):
        return Stages(tmp_path).run("work", inputs, [output], work)

    assert [run(1), run(1), run(2), run(2)] == [True, False, True, False]
    output.unlink()
    assert run(2)
    assert len(done) == 3


def test_a_stage_that_fails_is_not_remembered(tmp_path):
    def fail():
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        Stages(tmp_path).run("work", 1, [tmp_path], fail)
    assert Stages(tmp_path).run("work", 1, [tmp_path], lambda: None)
