"""The product with one validation rule switched off, to show which vectors need it.

Rules V01 to V15 are functions in the tuples of ``proto_v2/validate.py``: the
tuple is replaced by one without it. The others are statements that raise the
rule's code inside a function: the function is compiled again without them.
Two are done otherwise, see ``_EQUIVALENTS``.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from proto_v2 import representation, validate
from proto_v2.errors import Code, ProtocolError
from proto_v2.session import Ledger
from spark_rank import collector
from tests.support.spec_tables import SPECS

_RULE_TUPLES: Final = ("STEP_RULES", "STEP_ENTRY_RULES", "ROW_RULES")
# Where a function that a rule is part of may have been imported to.
_MODULES: Final = (representation, validate, collector)

# Rule -> the function that judges it and the codes that it raises there.
_STATEMENTS: Final[dict[str, tuple[ModuleType | type, str, tuple[str, ...]]]] = {
    "V16": (Ledger, "check_generation", ("GENERATION_STALE", "GENERATION_AHEAD")),
    "V17": (validate, "check_entry_against", ("SLOT_RANGE",)),
    "V18": (validate, "check_entry_against", ("CONTEXT_MISMATCH",)),
    "V19": (Ledger, "check_round", ("ROUND_STALE", "ROUND_AHEAD")),
    "V20": (Ledger, "check_anchor", ("POSITION_MISMATCH",)),
    "V21": (Ledger, "check_anchor", ("PREFIX_MISMATCH",)),
    "V22": (validate, "split_payload", ("Q_MISSING", "ROW_COUNT", "ROW_BYTES")),
    "V23": (validate, "read_row", ("ROW_CHECKSUM",)),
    "V24": (representation, "decode", ("ROW_ENTRIES", "ROW_BYTES")),
    "V26": (representation, "_check_ids", ("ID_ORDER",)),
    "V27": (representation, "_counts", ("VALUE_BITS",)),
    "V28": (representation, "_counts", ("VALUE_ZERO",)),
    "V29": (representation, "_counts", ("VALUE_DYADIC",)),
    "V30": (representation, "_counts", ("MASS_WRONG",)),
    "V31": (representation, "decode", ("PADDING_NOT_ZERO",)),
    "V32": (validate, "read_row", ("TOKEN_ZERO_Q",)),
    "V33": (validate, "check_completion", ("LATE_ROUND",)),
    "V34": (validate, "check_completion", ("COMPLETION_STATUS", "DEPTH_MISMATCH")),
    "V35": (validate, "check_completion", ("ROW_COUNT",)),
    "V36": (validate, "check_completion", ("COMPLETION_BYTES",)),
    "V37": (validate, "check_completion", ("COMPLETION_CHECKSUM",)),
    "V39": (validate, "check_draw", ("ROW_ENTRIES",)),
    "V40": (validate, "check_draw", ("TOKEN_NOT_DRAWN",)),
}


def _ids_in_order(ids: NDArray[np.int32], legal_size: int) -> None:
    if not bool((ids[1:] > ids[:-1]).all()):
        raise ProtocolError(Code.ID_ORDER, "ids", "ascending", "others")


def _any_status(number: int, otherwise: Code) -> int:
    return number


# V25 shares its test with V26, and V38 is the answer of a function to every unknown number:
# what is put in their place judges the other rule alone, or knows every number.
_EQUIVALENTS: Final[dict[str, tuple[ModuleType, str, Callable[..., Any]]]] = {
    "V25": (representation, "_check_ids", _ids_in_order),
    "V38": (collector, "known_code", _any_status),
}


class _Remover(ast.NodeTransformer):
    """Puts ``pass`` for every statement that raises one of the codes, or calls for it."""

    def __init__(self, codes: tuple[str, ...]) -> None:
        self._codes = codes
        self.removed: set[str] = set()

    def _visit(self, node: ast.Raise | ast.Expr) -> ast.stmt:
        named = {
            inner.attr
            for inner in ast.walk(node)
            if isinstance(inner, ast.Attribute)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "Code"
        } & set(self._codes)
        self.removed |= named
        return ast.copy_location(ast.Pass(), node) if named else node

    visit_Raise = visit_Expr = _visit  # noqa: N815  (names that ast looks for)


def _recompiled(function: Any, codes: tuple[str, ...]) -> Any:
    """The function without the statements of these codes."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    remover = _Remover(codes)
    tree = ast.fix_missing_locations(remover.visit(tree))
    assert remover.removed == set(codes), f"{function.__name__} raises {remover.removed}"
    made: dict[str, Any] = {}
    exec(compile(tree, inspect.getfile(function), "exec"), function.__globals__, made)
    return made[function.__name__]


@contextmanager
def without(rule: str) -> Iterator[None]:
    """The product as it would be without this rule."""
    with ExitStack() as stack:
        if rule in _FUNCTIONS:
            for name in _RULE_TUPLES:
                kept = tuple(r for r in getattr(validate, name) if r.__name__ != _FUNCTIONS[rule])
                stack.enter_context(patch.object(validate, name, kept))
        elif rule in _EQUIVALENTS:
            stack.enter_context(patch.object(*_EQUIVALENTS[rule]))
        else:
            owner, name, codes = _STATEMENTS[rule]
            original = getattr(owner, name)
            changed = _recompiled(original, codes)
            for place in (owner, *_MODULES):
                if getattr(place, name, None) is original:
                    stack.enter_context(patch.object(place, name, changed))
        yield


def _functions() -> dict[str, str]:
    """Rule -> function, of the table of 04."""
    rows = (SPECS / "04-validation.md").read_text().split("<!-- table: rules -->")[1]
    cells = [row.split(" | ") for row in rows.split("<!-- end -->")[0].splitlines() if "`" in row]
    return {rule.strip("| "): function.strip("`") for rule, function, *_ in cells}


_FUNCTIONS: Final = _functions()
RULES: Final = sorted({*_FUNCTIONS, *_STATEMENTS, *_EQUIVALENTS})
