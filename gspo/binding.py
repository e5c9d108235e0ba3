"""Functions named in the configuration: `_target_` and keywords become a bound function, no keyword is ignored."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any


def target(node: dict[str, Any], where: str) -> Callable[..., Any]:
    """The function or class that `node._target_` names.

    Raises ValueError, naming `where`, when there is no such thing.
    """
    path = node.get("_target_")
    module, _, name = str(path).rpartition(".")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(f"{where}._target_={path}: MODULE.FUNCTION is needed")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{where}._target_={path}: {error}") from error
    except (Exception, SystemExit) as error:  # anybody's module
        raise ValueError(f"{where}._target_={path}: its import raised {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"{where}._target_={path}: is {type(found).__name__} (accepted: a function or a class)")
    return found


def bind(node: dict[str, Any], where: str, **more: Any) -> Callable[..., Any]:
    """`node._target_` with the node's other keys, and `more`, as bound keywords.

    Raises ValueError, naming key, value and what is accepted, for a keyword that the function does not take (no option
    is silently ignored) and for a value that is not of the annotated type.
    """
    function = target(node, where)
    keywords = {key: _bound(value, f"{where}.{key}") for key, value in node.items() if key != "_target_"} | more
    try:
        parameters = inspect.signature(function).parameters
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(f"{where}._target_={node['_target_']}: its signature cannot be read: {error}") from error
    for key, value in keywords.items():
        if key not in parameters:
            accepted = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
            raise ValueError(f"{where}.{key}={value}: {function.__name__} takes {', '.join(accepted) or 'no option'}")
        if key in hints and not _is_a(value, hints[key]):
            name = getattr(hints[key], "__name__", str(hints[key]))
            raise ValueError(f"{where}.{key}={value}: {name} is accepted, not {type(value).__name__}")
    return functools.partial(function, **keywords)


def _bound(value: Any, where: str) -> Any:
    """A node inside a node bound likewise, also as an entry of a mapping; any other value as it is."""
    if not isinstance(value, dict):
        return value
    if "_target_" in value:
        return bind(value, where)
    return {key: _bound(entry, f"{where}.{key}") for key, entry in value.items()}


def _is_a(value: Any, hint: Any) -> bool:
    """Is `value` of a plain annotated type? An int is a float, a bool is not an int; what is not plain passes."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return any(_is_one(value, option) for option in (typing.get_args(hint) if union else (hint,)))


def _is_one(value: Any, option: Any) -> bool:
    kind = typing.get_origin(option) or option
    if kind is typing.Literal:
        return value in typing.get_args(option)
    if not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False):  # a function, bound from a node of its own
        return callable(value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
