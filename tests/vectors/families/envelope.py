"""Headers and frames: the checks of W-2, each alone and each pair in order."""

import struct
from collections.abc import Callable
from itertools import combinations
from typing import Any, Final

from .. import pack
from ..layout import LIMITS
from ..suite import File, Group, Limit, Note

BOOT: Final = bytes.fromhex("a0a1a2a3a4a5a6a7a8a9aaabacadaeaf")
EPOCH: Final = 0x0123456789ABCDEF
BODY: Final = pack.packed([4, 5])
PAYLOAD: Final = bytes(range(24))

NOTES: Final = {
    "Whole": Note("a message whose frames agree with its header", ("03-W-1",), "no message passes"),
    "Bound": Note(
        "a length at its bound, or one beside it",
        ("03-W-2", "07-T-6"),
        "a sender that keeps to the bound is refused, or memory is had for one that does not",
    ),
    "Magic": Note(
        "the first four bytes are not PP1q",
        ("03-W-2", "03-W-5"),
        "bytes of another protocol are interpreted",
    ),
    "Version": Note(
        "another wire version, whatever else is right or wrong",
        ("03-W-5",),
        "a message is read by the layout of another version",
    ),
    "HeaderLength": Note("the header frame is not 64 bytes", ("03-W-2",), "reads beyond a frame"),
    "HeaderChecksum": Note(
        "a header with one byte changed", ("03-W-2",), "a damaged length, kind or epoch is believed"
    ),
    "Reserved": Note(
        "a reserved byte is set", ("03-W-2",), "the bytes cannot be given a meaning later"
    ),
    "FrameCount": Note(
        "the number of frames is not the announced one",
        ("03-W-1", "03-W-2"),
        "a payload is lost or one too many is kept",
    ),
    "BodyLength": Note(
        "the body is not as long as announced",
        ("03-W-2", "03-W-3"),
        "memory is sized by what a header claims",
    ),
    "BodyChecksum": Note("a damaged body", ("03-W-2",), "damaged fields are believed"),
    "PayloadLength": Note(
        "the payload is not as long as announced",
        ("03-W-2", "03-W-3"),
        "memory is sized by what a header claims",
    ),
    "Order": Note(
        "two faults in one message: the earlier check gives the code",
        ("03-W-2",),
        "two implementations count one message under two codes, and one may answer it",
    ),
}

# The checks of W-2 in order: code, flag, and how a message of this kind is broken.
Frames = list[bytes]
Fault = tuple[str, str, dict[str, Any], Callable[[Frames], Frames]]


def _same(frames: Frames) -> Frames:
    return frames


def _flip(frames: Frames, at: int) -> Frames:
    changed = bytearray(frames[1])
    changed[at] ^= 1
    return [frames[0], bytes(changed), *frames[2:]]


_FAULTS: Final[tuple[tuple[str, Fault], ...]] = (
    ("magic", ("NOT_OURS", "Magic", {"magic": b"PP1r"}, _same)),
    ("version", ("WIRE_VERSION", "Version", {"version": 3}, _same)),
    ("header length", ("HEADER_LENGTH", "HeaderLength", {}, lambda f: [f[0] + b"\0", *f[1:]])),
    ("header checksum", ("HEADER_CHECKSUM", "HeaderChecksum", {"checksum": 1}, _same)),
    ("reserved bytes", ("NOT_CANONICAL", "Reserved", {"reserved": (1, 0)}, _same)),
    ("payload frame count", ("FRAME_COUNT", "FrameCount", {"payload_frames": 2}, _same)),
    (
        "announced body length",
        ("BODY_LENGTH", "BodyLength", {"body_length": int(LIMITS["BODY_BYTES_MAX"]) + 1}, _same),
    ),
    (
        "announced payload length",
        (
            "PAYLOAD_LENGTH",
            "PayloadLength",
            {"payload_length": int(LIMITS["PAYLOAD_BYTES_MAX"]) + 1},
            _same,
        ),
    ),
    ("number of frames", ("FRAME_COUNT", "FrameCount", {}, lambda f: [*f, b""])),
    ("body length", ("BODY_LENGTH", "BodyLength", {}, lambda f: [f[0], f[1] + b"\0", *f[2:]])),
    ("body checksum", ("BODY_CHECKSUM", "BodyChecksum", {"body_checksum": 1}, _same)),
    (
        "payload length",
        (
            "PAYLOAD_LENGTH",
            "PayloadLength",
            {},
            lambda f: [*f[:2], *(frame + b"\0" for frame in f[2:])],
        ),
    ),
)


def _whole(
    group: Group,
    comment: str,
    flags: list[str],
    kind: int,
    frames: Frames,
    limit: Limit | None = None,
) -> None:
    payload_frames, (body_checksum,) = frames[0][6], struct.unpack_from("<Q", frames[0], 40)
    group.valid(
        comment,
        flags,
        frames=frames,
        limit=limit,
        output={
            "kind": kind,
            "payload_frames": payload_frames,
            "body_length": len(frames[1]),
            "payload_length": len(frames[2]) if payload_frames else 0,
            "boot_id": frames[0][16:32],
            "link_epoch": struct.unpack_from("<Q", frames[0], 32)[0],
            "body_checksum": body_checksum,
        },
    )


def make() -> File:
    """The file."""
    file = File("envelope", "PP1 envelope", "03 Wire: Frames", NOTES)
    group = file.group("read_message")

    def sealed(
        kind: int = 4, body: bytes = BODY, payload: bytes | None = None, **changes: Any
    ) -> Frames:
        return pack.message(
            kind, body, payload, **{"boot_id": BOOT, "link_epoch": EPOCH, **changes}
        )

    _whole(group, "two frames", ["Whole"], 4, sealed())
    _whole(group, "three frames", ["Whole"], 13, sealed(13, BODY, PAYLOAD))
    _whole(group, "an announced payload frame may be empty", ["Whole"], 13, sealed(13, BODY, b""))
    _whole(group, "an empty body is for the codec to judge", ["Whole"], 4, sealed(4, b""))
    for kind in (0, 1, 3, 127, 128, 255):
        _whole(
            group, f"kind {kind}: the envelope does not know kinds", ["Whole"], kind, sealed(kind)
        )
    for epoch in (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        _whole(group, f"link epoch {epoch}", ["Whole"], 4, sealed(link_epoch=epoch))
    for boot in (bytes(16), b"\xff" * 16):
        _whole(group, "a boot id is any 16 bytes", ["Whole"], 4, sealed(boot_id=boot))

    for name, flag, code in (
        ("BODY_BYTES_MAX", "BodyLength", "BODY_LENGTH"),
        ("PAYLOAD_BYTES_MAX", "PayloadLength", "PAYLOAD_LENGTH"),
    ):
        most = int(LIMITS[name])
        for offset in (-1, 0, 1):
            long = bytes(most + offset)
            is_body = flag == "BodyLength"
            frames = sealed(13, long) if is_body else sealed(13, BODY, long)
            comment = f"{'a body' if is_body else 'a payload'} of {most + offset} bytes"
            if offset <= 0:
                _whole(group, comment, ["Bound"], 13, frames, Limit(name, offset))
            else:
                group.invalid(
                    code, comment, ["Bound", flag], frames=frames, limit=Limit(name, offset)
                )
        for claimed in (most + 1, 1 << 31, (1 << 32) - 1):
            key = "body_length" if flag == "BodyLength" else "payload_length"
            group.invalid(
                code,
                f"{claimed} bytes announced, few there",
                [flag],
                frames=sealed(13, BODY, PAYLOAD, **{key: claimed}),
            )

    for length in (0, 1, 3):
        group.invalid(
            "NOT_OURS",
            f"a header of {length} bytes",
            ["Magic", "HeaderLength"],
            frames=[b"PP1q"[:length], BODY],
        )
    group.invalid(
        "HEADER_LENGTH",
        "a header that ends after the magic",
        ["HeaderLength"],
        frames=[b"PP1q", BODY],
    )
    for offset in (-1, 1, -59, 64):
        cut = (sealed()[0] + bytes(64))[: 64 + offset]
        group.invalid(
            "HEADER_LENGTH",
            f"a header of {64 + offset} bytes",
            ["HeaderLength"],
            frames=[cut, BODY],
            limit=Limit("HEADER_BYTES", offset) if abs(offset) == 1 else None,
        )
    _whole(
        group,
        "a header of 64 bytes",
        ["Bound"],
        4,
        sealed(boot_id=b"b" * 16),
        Limit("HEADER_BYTES", 0),
    )
    for version in (0, 1, 3, 255):
        group.invalid(
            "WIRE_VERSION", f"version {version}", ["Version"], frames=sealed(version=version)
        )
        group.invalid(
            "WIRE_VERSION",
            f"version {version} with a header of another length",
            ["Version"],
            frames=[sealed(version=version)[0][:48], BODY],
        )
    group.invalid(
        "WIRE_VERSION", "five bytes of version 3", ["Version"], frames=[b"PP1q\x03", BODY]
    )
    for magic in (b"PP1Q", b"pp1q", b"PP1\0", b"q1PP", b"\0\0\0\0", b"PP2q"):
        group.invalid("NOT_OURS", f"magic {magic.hex()}", ["Magic"], frames=sealed(magic=magic))

    for at in range(64):
        changed = bytearray(sealed()[0])
        changed[at] ^= 0x10
        code, flag = (
            ("NOT_OURS", "Magic")
            if at < 4
            else ("WIRE_VERSION", "Version")
            if at == 4
            else ("HEADER_CHECKSUM", "HeaderChecksum")
        )
        group.invalid(
            code,
            f"byte {at} of the header changed under its checksum",
            [flag],
            frames=[bytes(changed), BODY],
        )
    right = struct.unpack("<Q", sealed()[0][56:])[0]
    for found, what in (
        (0, "zero"),
        (~right & (1 << 64) - 1, "inverted"),
        (int.from_bytes(right.to_bytes(8, "little"), "big"), "big endian"),
    ):
        group.invalid(
            "HEADER_CHECKSUM",
            f"header checksum {what}",
            ["HeaderChecksum"],
            frames=sealed(checksum=found),
        )

    for value in (1, 2, 128, 255):
        group.invalid(
            "NOT_CANONICAL", f"byte 7 is {value}", ["Reserved"], frames=sealed(reserved=(value, 0))
        )
    for value in (1, 1 << 31, 1 << 56, 1 << 63, (1 << 64) - 1):
        group.invalid(
            "NOT_CANONICAL",
            f"bytes 48 to 55 are {value}",
            ["Reserved"],
            frames=sealed(reserved=(0, value)),
        )

    for claimed in (2, 3, 128, 255):
        group.invalid(
            "FRAME_COUNT",
            f"{claimed} payload frames announced",
            ["FrameCount"],
            frames=sealed(13, BODY, PAYLOAD, payload_frames=claimed),
        )
    group.invalid(
        "FRAME_COUNT",
        "no payload frame, but a payload length",
        ["FrameCount"],
        frames=sealed(payload_length=1),
    )
    three = sealed(13, BODY, PAYLOAD)
    for frames, what in (
        (three[:1], "a header alone"),
        (three[:2], "the payload is missing"),
        ([*three, b""], "one empty frame too many"),
        ([*sealed(), PAYLOAD], "a payload that was not announced"),
        ([*sealed(), b""], "an empty payload that was not announced"),
        (sealed()[:1], "the body is missing"),
        ([*three, PAYLOAD, PAYLOAD], "three payload frames"),
    ):
        side = {2: -1, 4: 1}.get(len(frames)) if frames[0] == three[0] else None
        group.invalid(
            "FRAME_COUNT",
            what,
            ["FrameCount"],
            frames=frames,
            limit=Limit("FRAMES_MAX", side) if side else None,
        )
    _whole(
        group,
        "two frames with an empty payload length",
        ["Bound"],
        13,
        sealed(13),
        Limit("FRAMES_MAX", -1),
    )
    _whole(
        group,
        "three frames are the most",
        ["Bound"],
        14,
        sealed(14, BODY, PAYLOAD),
        Limit("FRAMES_MAX", 0),
    )

    for claimed in (0, len(BODY) - 1, len(BODY) + 1):
        group.invalid(
            "BODY_LENGTH",
            f"body length {claimed} for {len(BODY)} bytes",
            ["BodyLength"],
            frames=sealed(body_length=claimed),
        )
    for at in range(len(BODY)):
        group.invalid(
            "BODY_CHECKSUM",
            f"byte {at} of the body changed",
            ["BodyChecksum"],
            frames=_flip(sealed(), at),
        )
    group.invalid(
        "BODY_CHECKSUM",
        "the body of another message of the same length",
        ["BodyChecksum"],
        frames=[sealed()[0], pack.packed([5, 5])],
    )
    for value in (0, (1 << 64) - 1):
        group.invalid(
            "BODY_CHECKSUM",
            f"body checksum {value}",
            ["BodyChecksum"],
            frames=sealed(body_checksum=value),
        )
    for claimed in (0, len(PAYLOAD) - 1, len(PAYLOAD) + 1):
        group.invalid(
            "PAYLOAD_LENGTH",
            f"payload length {claimed} for {len(PAYLOAD)} bytes",
            ["PayloadLength"],
            frames=sealed(13, BODY, PAYLOAD, payload_length=claimed),
        )

    for (first, (code, flag, one, break_one)), (second, (_, other, two, break_two)) in combinations(
        _FAULTS, 2
    ):
        frames = break_two(break_one(sealed(13, BODY, PAYLOAD, **{**two, **one})))
        flags = ["Order", *dict.fromkeys((flag, other))]
        group.invalid(code, f"{first}, and {second}", flags, frames=frames)
    return file
