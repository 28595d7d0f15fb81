"""Public test sets, by name: where they are, their licenses, and their rows as items of a task."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
