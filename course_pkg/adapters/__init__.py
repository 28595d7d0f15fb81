"""Parameter-efficient fine-tuning: from LoRA to prefix tuning, in PEFT's file format.

`adapt`, `save` and `load` work for every method.

>>> from course_pkg.adapters import LoRAConfig
>>> LoRAConfig(rank=8, alpha=16).scaling_of()
2.0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
