"""Errors from preparing and loading models, one class for each kind of fix."""

from course_pkg.common.errors import CourseError


class ModelError(CourseError, RuntimeError):
    """A model could not be prepared; the message is one line and says how to fix it."""


class UnknownModelError(ModelError):
    """Neither a model nor a folder has the given name."""


class MissingPackageError(ModelError):
    """A pip package that contains or converts the model is not installed."""


class CorruptModelError(ModelError):
    """A model's file differs from the published one or cannot be read."""


class NoSpaceError(ModelError):
    """The disk that holds the cache folder is full or too small."""


class CacheAccessError(ModelError):
    """The cache folder cannot be read or written by this user."""


class OfflineError(ModelError):
    """The requested model is on the hub, and the hub cannot be reached."""
