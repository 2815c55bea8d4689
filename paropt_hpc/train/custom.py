"""A model or data of one's own, named in a configuration as ``module:callable``."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paropt_hpc.errors import ConfigError

__all__ = ["call"]


def call(key: str, name: str, **arguments: Any) -> Any:
    """Import the callable that a setting names, and return what it returns.

    Modules are looked for as usual, and then in the current folder.

    Parameters
    ----------
    key : str
        Of the setting, for error messages.
    name : str
        ``module:callable``.
    **arguments
        What the callable is given, by name.

    Raises
    ------
    ConfigError
        When there is no such module or callable, or it does not take the arguments. What it
        raises itself passes.
    """
    function = _find(key, name)
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"{key} = {name!r} must take the keywords {', '.join(arguments)}: {error}"
        ) from None
    return function(**arguments)


def _find(key: str, name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    sys.path.append(folder)  # behind everything else, so that it hides nothing
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"{key} = {name!r}: cannot import {module_name}: {type(error).__name__}: {error} "
            f"(looked in {folder} too)"
        ) from None
    finally:
        sys.path.remove(folder)
    function = getattr(module, attribute, None)
    if not callable(function):
        has = [key for key, value in vars(module).items() if inspect.isroutine(value)]
        raise ConfigError(
            f"{key} = {name!r}: {module_name} has no callable {attribute!r}; "
            f"it has {', '.join(has) or 'none'}"
        )
    return function  # type: ignore[no-any-return]
