"""Values as one line of JSON with tags for what JSON lacks: how arguments enter a box and results leave it.

null, true, false, strings, lists, integers below 2^53 and finite floats stand for themselves; `{"i": hex}` integer,
`{"f": text}` nan or inf, `{"t": []}` tuple, `{"s": []}` set, `{"z": []}` frozenset, `{"d": [[k, v]]}` dict, `{"b":
hex}` bytes, `{"c": [re, im]}` complex, `{"y": name}` one of these types, `{"o": [index, type name]}` an object that
stays inside the box. Decoding builds plain values only and runs no code of the sender.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner  # importing json takes longer than a test

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_DEPTH = 150


_PLAIN = (int, float, str, bool, list, tuple, dict, set, frozenset, bytes, complex, type(None))
_TYPES = {cls.__name__: cls for cls in _PLAIN}


class _Strict:
    strict, memo, object_hook, object_pairs_hook = True, {}, None, None
    parse_float, parse_int, parse_constant = float, int, float


_scan = make_scanner(_Strict)  # pyright: ignore[reportArgumentType]
_write = make_encoder(None, None, encode_basestring_ascii, None, ":", ",", False, False, True)  # pyright: ignore


def dumps(value: Any) -> str:
    """JSON text (ASCII) of plain JSON values."""
    return "".join(_write(value, 0))


def loads(text: str | bytes) -> Any:
    """The value of JSON text without blanks around it. Raises ValueError, RecursionError."""
    text = text if isinstance(text, str) else bytes(text).decode("ascii")
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("something follows the value")
    return value


def encode(value: Any, keep: Any = None) -> str:
    """`value` as one line of JSON text (ASCII).

    Subclasses of plain types are sent as the plain type. `keep(value)` may give an index for any other object; without
    it such an object raises TypeError. Nesting deeper than `MAX_DEPTH` raises ValueError.
    """
    return dumps(_pack(value, keep, 0))


def _pack(value: Any, keep: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, int):
        value = int(value)
        return value if -(2**53) < value < 2**53 else {"i": hex(value)}
    if isinstance(value, float):
        value = float(value)
        return value if value - value == 0.0 else {"f": repr(value)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [_pack(item, keep, depth + 1) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        return {"t": [_pack(item, keep, depth + 1) for item in tuple.__iter__(value)]}
    if isinstance(value, dict):
        pairs = dict.items(value)
        return {"d": [[_pack(k, keep, depth + 1), _pack(v, keep, depth + 1)] for k, v in pairs]}
    if isinstance(value, set | frozenset):
        tag = "s" if isinstance(value, set) else "z"
        return {tag: [_pack(item, keep, depth + 1) for item in value]}
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    if isinstance(value, complex):
        return {"c": [_pack(value.real, keep, depth), _pack(value.imag, keep, depth)]}
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return {"y": value.__name__}
    if keep is None:
        raise TypeError(f"{kind.__name__} is not a plain value")
    return {"o": [keep(value), kind.__name__]}


def decode(text: str | bytes, find: Any = None) -> Any:
    """The value of one line of JSON text; `find(index, type name)` gives what an `{"o": ...}` stands for.

    Raises ValueError for anything that `encode` cannot have written.
    """
    try:
        return _unpack(loads(text), find, 0)
    except (RecursionError, TypeError, KeyError, OverflowError, AttributeError) as error:
        raise ValueError(f"not a tagged value: {type(error).__name__}") from None


def _unpack(value: Any, find: Any, depth: int) -> Any:
    if isinstance(value, list):
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        return [_unpack(item, find, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError("not a tagged value")
    ((tag, body),) = value.items()
    if tag == "i":
        return int(body, 16)
    if tag == "f":
        return {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[body]
    if tag == "y":
        return _TYPES[body]
    if tag == "b":
        return bytes.fromhex(body)
    if tag == "c":
        return complex(*_unpack(body, find, depth + 1))
    if tag == "o" and find is not None:
        index, name = body
        return find(index, name)
    items = _unpack(body, find, depth + 1)
    if tag == "t":
        return tuple(items)
    if tag == "s":
        return set(items)
    if tag == "z":
        return frozenset(items)
    if tag == "d":
        return dict(items)
    raise ValueError(f"unknown tag {tag!r}")
