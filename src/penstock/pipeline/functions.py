"""The Python functions that transforms name as module:function."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.model.topic_config import nearest


class NoFunction(Exception):
    """It cannot be imported or called as declared; the text says why."""


def load_function(reference: str, folder: Path) -> Callable[..., Any]:
    """The function; modules beside the pipeline's file are found first."""
    module_name, _, name = reference.partition(":")
    place = str(folder)
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - a user's module may fail in any way, and has to be named
        raise NoFunction(f"cannot import {module_name}: {_one_line(error)}") from None
    found = getattr(module, name, None)
    if found is None:
        names = [one for one, value in vars(module).items() if callable(value)]
        raise NoFunction(f"module {module_name} has no function {name}{nearest(name, names)}")
    if not callable(found):
        raise NoFunction(f"{reference} is not a function")
    function: Callable[..., Any] = found
    return function


def check_call(function: Callable[..., Any], inputs: int, arguments: dict[str, Any]) -> str | None:
    """What speaks against calling it with so many DataFrames and these arguments, or None."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*range(inputs), **arguments)
    except TypeError as error:
        return f"its signature is {signature}: {error}"
    return None


def module_beside(reference: str, folder: Path) -> Path | None:
    """The file or package of the function's module if it lies in the folder: workers need a copy of it."""
    top = reference.partition(":")[0].partition(".")[0]
    for place in (folder / f"{top}.py", folder / top):
        if place.is_file() or (place / "__init__.py").is_file():
            return place
    return None


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
