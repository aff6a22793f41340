"""Making an engine from its name: built in, or an out-of-tree ``module:Class``."""

from collections.abc import Mapping
from importlib import import_module
from inspect import Signature, signature
from typing import Any

from proto_v2.errors import Code, ProtocolError


def construct(names: Mapping[str, str], name: str, options: Mapping[str, Any]) -> Any:
    """Call the constructor that ``name`` stands for with ``options``.

    ``names`` maps built-in names to ``module:attribute``; the module is
    imported only now.

    Raises:
        ProtocolError: CONFIG_INVALID for an unknown name, an option that the
            constructor does not take, or a word where it wants a number; what
            the constructor itself raises.
    """
    module_name, _, attribute = names.get(name, name).partition(":")
    if not attribute:
        raise ProtocolError(
            Code.CONFIG_INVALID, "engine", f"{', '.join(names)} or module:Class", name
        )
    try:
        constructor = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ProtocolError(
            Code.CONFIG_INVALID, "engine", "a module and class that can be imported", error
        ) from error
    try:
        taken = signature(constructor, eval_str=True)
        taken.bind(**options)
    except (TypeError, ValueError) as error:
        raise ProtocolError(
            Code.CONFIG_INVALID, "engine options", f"what {name} takes", error
        ) from error
    _check_numbers(taken, options)
    return constructor(**options)


def _check_numbers(taken: Signature, options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        parameter = taken.parameters.get(key)
        if parameter is not None and parameter.annotation is int and not isinstance(value, int):
            raise ProtocolError(
                Code.CONFIG_INVALID, f"engine option {key}", "a whole number", repr(value)
            )
