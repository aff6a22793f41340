"""Which numbered rule of the specification a refusal of the code belongs to."""

from dataclasses import dataclass
from typing import Final

from proto_v2.errors import Code, ProtocolError, one_line
from proto_v2.validate import ROW_RULES, STEP_ENTRY_RULES, STEP_RULES

# 03: the envelope, then what the codec finds in a body.
ENVELOPE: Final = "W-2"
CODEC: Final = {
    Code.KIND_UNKNOWN: "W-6",
    Code.MALFORMED: "W-6",
    Code.NOT_CANONICAL: "W-6",
    Code.KIND_MISMATCH: "W-7",
    Code.FRAME_COUNT: "W-1",
}
# 04: the rules that are one function each, by its name ...
NUMBERED: Final = {
    rule.__name__: f"V{number:02d}"
    for number, rule in enumerate((*STEP_RULES, *STEP_ENTRY_RULES, *ROW_RULES), 1)
}
# ... and the steps of the functions that judge what the message alone does not show.
PAYLOAD: Final = "V22"
ROW: Final = {
    Code.ROW_CHECKSUM: "V23",
    Code.ROW_ENTRIES: "V24",
    Code.ROW_BYTES: "V24",
    Code.ID_RANGE: "V25",
    Code.ID_ORDER: "V26",
    Code.VALUE_BITS: "V27",
    Code.VALUE_ZERO: "V28",
    Code.VALUE_DYADIC: "V29",
    Code.MASS_WRONG: "V30",
    Code.PADDING_NOT_ZERO: "V31",
    Code.TOKEN_ZERO_Q: "V32",
}
DRAW: Final = {Code.ROW_ENTRIES: "V39", Code.TOKEN_NOT_DRAWN: "V40"}
COMPLETION: Final = {
    Code.LATE_ROUND: "V33",
    Code.COMPLETION_STATUS: "V34",
    Code.DEPTH_MISMATCH: "V34",
    Code.ROW_COUNT: "V35",
    Code.COMPLETION_BYTES: "V36",
    Code.COMPLETION_CHECKSUM: "V37",
}
STATUS: Final = "V38"
REPEATED_ROW: Final = "V-4"


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that does not hold: its number, the code, and the field of the listing."""

    rule: str
    code: Code
    field: str
    wanted: str
    got: str

    def __str__(self) -> str:
        return (
            f"{self.rule} {self.code.name} ({int(self.code)}): wanted {self.wanted}, got {self.got}"
        )


def broken(rule: str, error: ProtocolError, field: str) -> Broken:
    """The rule that ``error`` shows to be broken, at a field of the listing."""
    return Broken(rule, error.code, field, one_line(error.wanted), one_line(error.got))
