"""The JSON Schema of the vectors: what each operation is given and gives."""

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

_VALIDATION: Final = (Path(__file__).parents[2] / "specs" / "04-validation.md").read_text()


class Operation(NamedTuple):
    """Names and types of the params of a group, and of input and output of its tests."""

    params: dict[str, str]
    input: dict[str, str]
    output: dict[str, str]


_Q: Final = {"ids": "ints", "counts": "ints"}
_STEP: Final = {"terms": "terms", "step": "bytes", "entry": "int"}
_LINK: Final = {"caller": "bytes", "called": "bytes", "caller_boot": "bytes"}
_CHAIN: Final = {
    "position": "int",
    "round": "int",
    "drafts": "ints",
    "rows": "qs",
    "targets": "qs",
    "stop_tokens": "ints",
    "room": "int",
}
_JUDGED: Final = {
    "tokens": "ints",
    "accepted": "int",
    "rejected": "int",
    "unverified": "int",
    "last": "int",
    "finish": "int",
}
_PLACE: Final = {"session_id": "bytes", "slot": "int", "generation": "int", "round": "int"}
_SIZES: Final = {"vocabulary_size": "int", "legal_size": "int"}

OPERATIONS: Final[dict[str, Operation]] = {
    "read_message": Operation(
        {},
        {"frames": "byteses"},
        {
            "kind": "int",
            "payload_frames": "int",
            "body_length": "int",
            "payload_length": "int",
            "boot_id": "bytes",
            "link_epoch": "int",
            "body_checksum": "int",
        },
    ),
    "decode_body": Operation(
        {"kind": "int", "message": "text"},
        {"body": "bytes"},
        {"message": "text", "fields": "fields"},
    ),
    "decode_message": Operation(
        {}, {"frames": "byteses"}, {"message": "text", "fields": "fields", "payload": "bytes"}
    ),
    "check_step": Operation({"terms": "terms"}, {"body": "bytes"}, {}),
    "check_step_entry": Operation({"session": "session"}, {"body": "bytes"}, {}),
    "decode_payload": Operation(
        _SIZES, {"representation": "int", "entries": "int", "payload": "bytes"}, _Q
    ),
    "check_row": Operation(_STEP, {"index": "int", "body": "bytes"}, {}),
    "split_payload": Operation(
        {"step": "bytes"}, {"body": "bytes", "payload": "bytes"}, {"lengths": "ints"}
    ),
    "read_row": Operation(
        _STEP, {"index": "int", "preceding": "ints", "body": "bytes", "payload": "bytes"}, _Q
    ),
    "check_draw": Operation(
        {**_STEP, "worker_key": "bytes"},
        {"index": "int", "token": "int", **_Q},
        {"ticket": "int"},
    ),
    "check_completion": Operation(
        {"step": "bytes", "entry": "int"},
        {"body": "bytes", "row_checksums": "ints", "reply_bytes": "int"},
        {"status": "int"},
    ),
    "collect": Operation(
        {"terms": "terms", "step": "bytes", "worker_keys": "byteses"},
        {"messages": "messages"},
        {"findings": "findings"},
    ),
    "derive_terms": Operation(
        {},
        {"caller": "bytes", "called": "bytes"},
        {"terms": "agreed_terms", "digest": "bytes", "link_epoch": "int"},
    ),
    "confirm_terms": Operation(
        {"caller": "bytes", "called": "bytes"}, {"body": "bytes"}, {"link_epoch": "int"}
    ),
    "receive_at_worker": Operation({**_LINK, "agreed": "bool"}, {"frames": "byteses"}, {}),
    "converse_with_worker": Operation(
        _LINK, {"before": "byteses", "body": "bytes"}, {"answers": "byteses"}
    ),
    "check_generate": Operation(
        {**_SIZES, "context_tokens_max": "int", "stop_tokens": "ints"}, {"body": "bytes"}, {}
    ),
    "check_open": Operation(
        {
            "target_checkpoint": "text",
            "processors": "text",
            "legal_size": "int",
            "context_tokens_max": "int",
        },
        {"body": "bytes"},
        {"worker_key": "bytes", "verifier_key": "bytes"},
    ),
    "merge_findings": Operation(
        {"step": "bytes"},
        {"prepare": "bytes", "prepared": "bytes"},
        {"reasons": "ints", "invalidate": "bytes_or_null", "decide": "bytes"},
    ),
    "answer_rank_zero": Operation(
        {"step": "bytes", "findings": "bytes"},
        {"messages": "byteses"},
        {"answer": "bytes_or_null"},
    ),
    "check_verdict": Operation(
        {
            "step": "bytes",
            "entry": "int",
            "drafts": "ints",
            "room": "int",
            "stop_tokens": "ints",
            "legal_size": "int",
        },
        {"body": "bytes"},
        {},
    ),
    "check_decision": Operation(
        {
            "step": "bytes",
            "drafts": "intses",
            "prefixes": "intses",
            "reasons": "ints",
            "rooms": "ints",
            "stop_tokens": "ints",
            "legal_size": "int",
            "verdicts": "bytes",
        },
        {"body": "bytes"},
        {"digest": "bytes"},
    ),
    "row_checksum": Operation(
        {},
        {
            **_PLACE,
            "position": "int",
            "preceding": "ints",
            "token": "int",
            "representation": "int",
            "entries": "int",
            "payload": "bytes",
            "checksum": "int",
        },
        {},
    ),
    "completion_checksum": Operation(
        {},
        {
            **_PLACE,
            "status": "int",
            "reply_bytes": "int",
            "row_checksums": "ints",
            "checksum": "int",
        },
        {},
    ),
    "proposal_digest": Operation(
        {},
        {
            "step": "bytes",
            "entry": "int",
            "tokens": "ints",
            "row_checksums": "ints",
            "digest": "bytes",
        },
        {},
    ),
    "decision_digest": Operation({}, {"body": "bytes", "digest": "bytes"}, {}),
    "prefix_digest": Operation(
        {}, {"session_id": "bytes", "tokens": "ints", "digest": "bytes"}, {}
    ),
    "context_version": Operation(
        {},
        {
            "target_checkpoint": "text",
            "processors": "text",
            "temperature": "bits64",
            "stop_tokens": "ints",
            "context": "int",
        },
        {},
    ),
    "vocabulary_hash": Operation({}, {"tokens": "byteses", "hash": "bytes"}, {}),
    "philox": Operation({}, {"counter": "ints", "key": "ints"}, {"words": "ints"}),
    "derive_key": Operation(
        {},
        {
            "session_seed": "bytes",
            "session_id": "bytes",
            "request_id": "int",
            "generation": "int",
            "owner": "int",
        },
        {"key": "bytes"},
    ),
    "ticket": Operation(
        {"key": "bytes"},
        {"bits": "int", "domain": "int", "position": "int", "round": "int"},
        {"ticket": "int"},
    ),
    "below": Operation(
        {"key": "bytes"},
        {"bound": "int", "domain": "int", "position": "int", "round": "int"},
        {"value": "int", "draws": "int"},
    ),
    "reduce": Operation({}, {"word": "int", "bound": "int"}, {"value": "int_or_null"}),
    "allocate": Operation({"mass_bits": "int"}, {"weights": "bits64s"}, {"counts": "ints"}),
    "top_k": Operation({"mass_bits": "int"}, {"weights": "bits64s", "k": "int"}, _Q),
    "token_at": Operation(
        {"mass_bits": "int", "vocabulary_size": "int", **_Q}, {"ticket": "int"}, {"token": "int"}
    ),
    "token_at_shards": Operation({"shards": "intses"}, {"ticket": "int"}, {"token": "int"}),
    "target_counts": Operation({"legal_size": "int"}, {"logits": "bits32s"}, {"counts": "ints"}),
    "residual": Operation({"vocabulary_size": "int"}, {"target": "ints", **_Q}, {"counts": "ints"}),
    "verify": Operation(_SIZES, {**_CHAIN, "draws": "draws"}, _JUDGED),
    "verify_keyed": Operation({**_SIZES, "key": "bytes"}, _CHAIN, {**_JUDGED, "draws": "draws"}),
}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _named(types: dict[str, str]) -> dict[str, Any]:
    return _object({name: _ref(kind) for name, kind in types.items()})


def _list(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _ref(name)}


def _hex(digits: int) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^[0-9a-f]{{{digits}}}$"}


_HEX: Final = {"type": "string", "pattern": "^([0-9a-f]{2})*$"}
_TERMS: Final = {
    "representations": "ints",
    "vocabulary_size": "int",
    "legal_size": "int",
    "requests_max": "int",
    "depth_max": "int",
    "support_max": "int",
}
_TYPES: Final[dict[str, Any]] = {
    "int": {
        "description": "a number, or hexadecimal from 2^53 on",
        "oneOf": [
            {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1},
            {"type": "string", "pattern": "^-?0x[0-9a-f]+$"},
        ],
    },
    "bytes": {
        "description": "hexadecimal, or pieces of it, each standing there a number of times",
        "oneOf": [
            _HEX,
            {
                "type": "array",
                "items": _object({"hex": _HEX, "times": {"type": "integer", "minimum": 1}}),
            },
        ],
    },
    "bits32": _hex(8),
    "bits64": _hex(16),
    "bool": {"type": "boolean"},
    "text": {"type": "string"},
    "ints": _list("int"),
    "intses": _list("ints"),
    "byteses": _list("bytes"),
    "bits32s": _list("bits32"),
    "bits64s": _list("bits64"),
    "int_or_null": {"oneOf": [_ref("int"), {"type": "null"}]},
    "bytes_or_null": {"oneOf": [_ref("bytes"), {"type": "null"}]},
    "q": {"description": "the ids that have mass, ascending, and their counts", **_named(_Q)},
    "qs": _list("q"),
    "draws": _list("draw"),
    "draw": _named({"domain": "int", "position": "int", "bound": "int", "ticket": "int"}),
    "terms": _named(_TERMS),
    "agreed_terms": _named(
        {
            "wire_version": "int",
            "semantics": "text",
            "verifier": "text",
            "rng_abi": "text",
            "precision": "text",
            "representations": "ints",
            "vocabulary_size": "int",
            "legal_size": "int",
            "vocabulary_hash": "bytes",
            "draft_checkpoint": "text",
            "draft_native": "bool",
            "target_checkpoint": "text",
            "processors": "text",
            "requests_max": "int",
            "depth_max": "int",
            "support_max": "int",
            "frame_bytes_max": "int",
            "staging_bytes": "int",
            "row_bytes_max": "int",
        }
    ),
    "session": _named(
        {
            "session_id": "bytes",
            "prefix": "ints",
            "generation": "int",
            "last_round": "int",
            "slot": "int",
            "context": "int",
        }
    ),
    "messages": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"body": _ref("bytes"), "payload": _ref("bytes")},
            "required": ["body"],
            "additionalProperties": False,
        },
    },
    "findings": {"type": "array", "items": _named({"status": "int", "digest": "bytes"})},
    "fields": {"type": "object", "additionalProperties": _ref("value")},
    "value": {
        "description": "a field: bytes as bin, a float64 by its bits, a record by its fields",
        "oneOf": [
            _ref("int_or_text"),
            _ref("bool"),
            _object({"bin": _ref("bytes")}),
            _object({"f64": _ref("bits64")}),
            _list("value"),
            {
                "type": "object",
                "minProperties": 3,
                "additionalProperties": _ref("value"),
            },
        ],
    },
    "int_or_text": {
        "description": "an integer or a text; the field's type in 03-wire.md tells them apart",
        "type": ["integer", "string"],
    },
}


def _test(operation: Operation) -> dict[str, Any]:
    return {"properties": {"input": _named(operation.input), "output": _named(operation.output)}}


def _schema() -> dict[str, Any]:
    codes = re.findall(r"^\| \d{3} \| ([A-Z_]+) \|", _VALIDATION, re.MULTILINE)
    test = {
        "type": "object",
        "properties": {
            "tc_id": {"type": "integer", "minimum": 1},
            "comment": {"type": "string", "minLength": 1},
            "flags": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "uniqueItems": True,
            },
            "input": {"type": "object"},
            "result": {"enum": ["valid", "invalid"]},
            "code": {"description": "the code of 04-validation.md", "enum": codes},
            "field": {"type": "string"},
            "only_rule": {"type": "string", "pattern": "^V[0-9]{2}$"},
            "output": {"type": "object"},
            "limit": _object({"name": {"type": "string"}, "offset": {"enum": [-1, 0, 1]}}),
        },
        "required": ["tc_id", "comment", "flags", "input", "result"],
        "additionalProperties": False,
        "if": {"properties": {"result": {"const": "invalid"}}},
        "then": {"required": ["code"]},
        "else": {
            "not": {"anyOf": [{"required": [name]} for name in ("code", "field", "only_rule")]}
        },
    }
    group = {
        "type": "object",
        "properties": {
            "operation": {"enum": list(OPERATIONS)},
            "params": {"type": "object"},
            "tests": {"type": "array", "items": _ref("test"), "minItems": 1},
        },
        "required": ["operation", "params", "tests"],
        "additionalProperties": False,
        "allOf": [
            {
                "if": {"properties": {"operation": {"const": name}}},
                "then": {
                    "properties": {
                        "params": _named(operation.params),
                        "tests": {"items": _test(operation)},
                    }
                },
            }
            for name, operation in OPERATIONS.items()
        ],
    }
    note = _object(
        {
            "description": {"type": "string", "minLength": 1},
            "spec": {
                "type": "array",
                "items": {"type": "string", "pattern": "^0[1-8]-([A-Z]-[0-9]+|V[0-9]{2})$"},
                "minItems": 1,
                "uniqueItems": True,
            },
            "effect": {"type": "string", "minLength": 1},
        }
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "PP1 test vectors",
        **_object(
            {
                "algorithm": {"type": "string"},
                "section": {"type": "string"},
                "schema": {"const": "schema.json"},
                "generator_version": {"type": "string", "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+$"},
                "number_of_tests": {"type": "integer", "minimum": 1},
                "notes": {"type": "object", "additionalProperties": note},
                "test_groups": {"type": "array", "items": _ref("group"), "minItems": 1},
            }
        ),
        "$defs": {"group": group, "test": test, **_TYPES},
    }


def schema_text() -> str:
    """The file."""
    return json.dumps(_schema(), indent=1) + "\n"
