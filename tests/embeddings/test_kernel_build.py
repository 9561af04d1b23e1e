"""The kernel loader: a cache that is filled once, and a logged fall-back that never raises."""

import logging
import subprocess
import sys

import pytest

from shardgym.embeddings.kernels import build


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """The loader as in a new process with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.load_kernel.cache_clear()
    yield tmp_path
    build.load_kernel.cache_clear()


def test_no_compiler_is_logged_and_falls_back(fresh, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING, "shardgym.kernels"):
        assert build.load_kernel("dedup_cpu") is None
    assert "dedup_cpu is not available" in caplog.text
    assert "no-such-compiler" in caplog.text


def test_a_source_that_does_not_compile_says_why_and_leaves_nothing(fresh, tmp_path, caplog, monkeypatch):
    (tmp_path / "broken.cpp").write_text("this is not C++")
    monkeypatch.setattr(build, "__file__", str(tmp_path / "build.py"))
    assert build.load_kernel("broken") is None
    assert "error" in caplog.text
    assert not list(tmp_path.rglob("*.so*"))


def test_kernels_can_be_turned_off(fresh, monkeypatch):
    monkeypatch.setenv("SHARDGYM_KERNELS", "off")
    assert build.load_kernel("dedup_cpu") is None


def test_the_binary_is_keyed_by_source_and_flags(tmp_path):
    source = tmp_path / "one.cpp"
    source.write_text("a")
    keys = {build._key(source, ["g++"]), build._key(source, ["g++", "-O1"])}
    source.write_text("b")
    keys.add(build._key(source, ["g++"]))
    assert len(keys) == 3


def test_processes_that_ask_at_once_compile_once(fresh, monkeypatch):
    # A compiler that notes each call and makes a file that loads as nothing: only the calls are counted.
    compiler = fresh / "cc"
    compiler.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo 1; exit; fi\necho call >> {fresh}/calls\nsleep 0.3\n'
        'while [ "$1" != -o ]; do shift; done\necho made > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    command = "from shardgym.embeddings.kernels import build, __path__; from pathlib import Path; "
    command += "print(build._compiled(Path(list(__path__)[0]) / 'dedup_cpu.cpp').read_text())"
    runs = [subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [run.communicate(timeout=120)[0].strip() for run in runs] == ["made", "made"]
    assert (fresh / "calls").read_text() == "call\n"
