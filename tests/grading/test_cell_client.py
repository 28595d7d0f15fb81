"""What a cell that is interrupted at its time limit is told of its output: no matter of speed."""

import asyncio
from types import SimpleNamespace

import pytest
from nbclient.exceptions import CellTimeoutError
from nbformat.v4 import new_code_cell, new_notebook

from course_pkg.grading.cell_client import HEADER, CellClient

LIMIT = 10 * HEADER


@pytest.mark.parametrize(
    ("texts", "much"),
    [
        ([], False),
        (["x" * LIMIT], True),
        (["."], False),
        (["."] * 12, True),  # prints that are flushed
    ],
)
def test_a_late_cell_put_out_too_much_if_it_is_over_the_limit(monkeypatch, texts, much):
    cell = new_code_cell("while True: print()")
    client = CellClient(new_notebook(cells=[cell]), LIMIT)
    client.clear_before_next_output = False  # nbclient sets it for each cell
    client.km = SimpleNamespace(provisioner=SimpleNamespace(pid=0))
    called = []
    client.when_too_much = lambda: called.append(client)
    client.on_cell_execute()
    monkeypatch.setattr("course_pkg.grading.cell_client.FairClock.seconds", lambda clock: 9.0)
    for text in texts:
        content = {"name": "stdout", "text": text}
        header = {"msg_type": "stream"}
        message = {"header": header, "parent_header": {}, "content": content, **header}
        client.output(cell.outputs, message, None, 0)
    with pytest.raises(CellTimeoutError):
        asyncio.run(client._async_handle_timeout(1, cell))
    assert client.flooded == much and len(called) == much
    client.on_cell_execute()
    assert not client.flooded
