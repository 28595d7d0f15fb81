"""What can go wrong when a model is asked for by name, one class per mend.

Every message is one line: what was found, what is wanted, and what to do about it. The
command line prints the message alone, so it must make sense without a traceback.

Chapter: setup.
"""


class ModelError(RuntimeError):
    """A model could not be made ready; the message is one line and ends with the mend.

    >>> issubclass(UnknownModelError, ModelError)
    True
    """


class UnknownModelError(ModelError):
    """No model has that name, and no folder either."""


class MissingPackageError(ModelError):
    """A pip package that carries or converts the model is not installed."""


class CorruptModelError(ModelError):
    """The file that the model comes from is not the one that was published."""


class NoSpaceError(ModelError):
    """The disk of the cache folder is full, or too small."""


class CacheAccessError(ModelError):
    """The cache folder cannot be read or written by this user."""


class OfflineError(ModelError):
    """A model on a hub was asked for, and the hub cannot be reached."""
