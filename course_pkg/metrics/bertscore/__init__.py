"""BERTScore: tokens matched by the cosines of an encoder's vectors."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
