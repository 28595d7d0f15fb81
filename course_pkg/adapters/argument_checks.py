"""Checks of arguments that the methods share: names, patterns, models and generators."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import regex  # as re, with a limit of time: an adapter's file may be anybody's
import torch
from torch import nn

MOST = 100_000  # names of a setting; a model of many experts has so many modules
MOST_REGEXES = 1000  # where each name is a regex for all modules
SECONDS = 0.5  # of the processor; a regex for names takes microseconds


def require_regex(value: str, setting: str) -> None:
    """Raise ValueError unless the text is a regex."""
    try:
        regex.compile(value)
    except regex.error as error:
        raise ValueError(f"{setting} {value!r} is not a regex: {error}") from None


def regex_matches(value: str, name: str, setting: str, *, whole: bool = True) -> bool:
    r"""Whether a regex matches a module's name, to its end if `whole`."""
    require_regex(value, setting)
    match = regex.compile(value).fullmatch if whole else regex.compile(value).match
    try:
        return match(name, timeout=SECONDS) is not None
    except TimeoutError:
        raise ValueError(
            f"{setting} {value!r:.80} needs more than {SECONDS} s for the name {name}: write it "
            "without alternatives that overlap, or a repetition in a repetition"
        ) from None


def read_names(value: Any, name: str, whole: bool = False) -> str | tuple[str, ...]:
    """A setting of names as a sorted tuple; or, if `whole`, a string as it is."""
    if isinstance(value, str) and whole:
        return value
    value = () if value is None and not whole else value
    names = tuple(value) if isinstance(value, Iterable) else (None,)
    if isinstance(value, str) or not all(isinstance(item, str) for item in names):
        kinds = "a string or strings" if whole else "a list of strings"
        raise TypeError(f"{name} must be {kinds}, got {value!r:.80}")
    if len(names) > (most := MOST if whole else MOST_REGEXES):
        raise ValueError(f"{name} has {len(names)} entries, at most {most} are possible")
    return tuple(sorted(names))


def read_pattern(pattern: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """A setting by module as a dict."""
    pattern = {} if pattern is None else pattern
    if not isinstance(pattern, Mapping) or not all(isinstance(key, str) for key in pattern):
        raise TypeError(f"{name} must be a dict with strings as keys, got {pattern!r:.80}")
    for key in pattern:
        require_regex(key, f"{name}: the key")
    return dict(pattern)


def require_adapter_name(name: str) -> None:
    """Raise ValueError for a name that an adapter can't have."""
    fits = isinstance(name, str) and re.fullmatch(r"[\w-]+", name)
    if not fits or hasattr(nn.ParameterDict(), name):
        rule = "use letters, digits, _ and -, and not the name of a ParameterDict method"
        raise ValueError(f"adapter name {name!r} is invalid: {rule}")


def require_model(model: nn.Module) -> nn.Module:
    """Return the model if it is an nn.Module."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be an nn.Module, got {type(model).__name__}; "
            "load(name) returns two: model, tokenizer"
        )
    return model


def require_generator(generator: Any) -> None:
    """Raise TypeError unless it is None or a torch.Generator on the CPU."""
    if generator is not None and getattr(generator, "device", None) != torch.device("cpu"):
        raise TypeError(f"generator must be a torch.Generator on the CPU, got {generator!r:.80}")
