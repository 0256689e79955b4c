"""Python values as JSON and back, so that a case can be kept in a file: NaN, bytes, tuples, dates and odd keys included."""

from __future__ import annotations

import base64
import datetime
from typing import Any


def to_plain(value: Any) -> Any:
    """JSON data from which :func:`from_plain` makes the value again."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"text": value.encode("utf-8", "surrogatepass").hex()} if _has_surrogates(value) else value
    if isinstance(value, int):
        return {"int": hex(value)}  # hexadecimal, because Python refuses to print very long decimal ones
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime.date):
        return {"date": value.isoformat()}
    if isinstance(value, dict):
        return {"dict": [[to_plain(key), to_plain(item)] for key, item in value.items()]}
    name = {list: "list", tuple: "tuple", set: "set"}[type(value)]
    return {name: [to_plain(item) for item in value]}


def from_plain(data: Any) -> Any:
    """The reverse of :func:`to_plain`."""
    if not isinstance(data, dict):
        return data
    ((name, content),) = data.items()
    makers: dict[str, Any] = {
        "text": lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
        "int": lambda text: int(text, 16),
        "float": float,
        "bytes": base64.b64decode,
        "date": datetime.date.fromisoformat,
        "dict": lambda pairs: {from_plain(key): from_plain(item) for key, item in pairs},
        "list": lambda items: [from_plain(item) for item in items],
        "tuple": lambda items: tuple(from_plain(item) for item in items),
        "set": lambda items: {from_plain(item) for item in items},
    }
    return makers[name](content)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
