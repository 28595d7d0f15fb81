"""A submission as bytes: how it gets into a sandbox, or to a worker of a cluster.

Chapter: appendix/threat-model.
"""

import io
import os
import zipfile

import nbformat
from nbformat import NotebookNode


def pack(notebook: NotebookNode, files: dict[str, bytes]) -> bytes:
    """A zip with the notebook first, then the files.

    >>> len(pack(nbformat.v4.new_notebook(), {"notes.txt": b"a"})) > 100
    True
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("/notebook"), nbformat.writes(notebook))
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def unpack(submission: int, folder: str) -> NotebookNode:
    """The notebook of what `pack` returned; the files go into the folder.

    submission: a file descriptor, which is closed.
    """
    with os.fdopen(submission, "rb") as source, zipfile.ZipFile(source) as archive:
        first, *others = archive.infolist()
        for member in others:
            archive.extract(member, folder)
        return nbformat.reads(archive.read(first).decode(), as_version=4)
