"""Folders that export names lazily; test_architecture.py tests that importing one is light."""

from importlib import import_module

import pytest

from tests.test_architecture import LAZY, PACKAGE


def test_every_exported_name_is_listed_and_is_that_of_its_module(subtests):
    for name in [f"{PACKAGE}.{folder}" for folder in LAZY]:
        with subtests.test(name=name):
            folder = import_module(name)
            assert folder.__all__ == sorted(set(folder.__all__)) and set(folder.__all__) <= set(
                dir(folder)
            )
            for exported in folder.__all__:
                value = getattr(folder, exported)
                assert getattr(value, "__module__", name).startswith(name)
            with pytest.raises(AttributeError, match=rf"No {name} attribute nothing"):
                _ = folder.nothing
