"""How the pages' kernels wait is chosen by what else the machine does."""

import os

import kernels
import pytest


@pytest.mark.parametrize(
    ("percent", "before", "after"),
    [
        (3.0, None, None),  # nothing else runs: as torch has it
        (80.0, None, "passive"),
        (80.0, "active", "active"),  # whoever builds has said so
    ],
)
def test_threads_sleep_only_beside_other_work(monkeypatch, percent, before, after):
    monkeypatch.setenv(kernels.POLICY, before or "")  # which undoes also what is set below
    if before is None:
        monkeypatch.delenv(kernels.POLICY)
    monkeypatch.setattr(kernels.psutil, "cpu_percent", lambda interval: percent)
    kernels.choose_policy()
    assert os.environ.get(kernels.POLICY) == after
