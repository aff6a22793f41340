"""Fault kind A9 at decode: a process that flushes subnormals refuses what others refuse."""

import ctypes
import mmap
import platform
from collections.abc import Iterator

import numpy as np
import pytest

from proto_v2.errors import Code, ProtocolError
from proto_v2.representation import Representation, decode

MXCSR_DEFAULT = 0x1F80
FLUSH_AND_DENORMALS_ARE_ZERO = 0x8040
# push rdi; ldmxcsr [rsp]; pop rdi; ret
LOAD_MXCSR = bytes.fromhex("570fae14245fc3")
IDS = np.array([0, 1], dtype="<i4").tobytes()


@pytest.fixture
def subnormals_flushed() -> Iterator[None]:
    """What loading a library built with -ffast-math does to its process."""
    if platform.machine() != "x86_64":
        pytest.skip("sets the x86-64 control register")
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        pytest.skip("no executable memory here")
    page.write(LOAD_MXCSR)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    load = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(address)
    load(MXCSR_DEFAULT | FLUSH_AND_DENORMALS_ARE_ZERO)
    yield
    load(MXCSR_DEFAULT)


@pytest.mark.parametrize("representation", list(Representation))
@pytest.mark.parametrize("bits", [1, 0x007F_FFFF])
@pytest.mark.usefixtures("subnormals_flushed")
def test_a09_flushing_subnormals_changes_no_refusal(
    representation: Representation, bits: int
) -> None:
    """Or one rank would take a row, with an entry without mass, that the other refuses."""
    values = np.array([0x3F80_0000, bits], dtype="<u4").tobytes()
    payload = values if representation is Representation.DENSE_F32 else IDS + values
    with pytest.raises(ProtocolError) as refusal:
        decode(representation, payload, 2, vocabulary_size=2, legal_size=2)
    assert refusal.value.code is Code.VALUE_DYADIC


def test_an_unregistered_representation_is_refused_not_read_as_sparse() -> None:
    values = np.array([0.5, 0.5], dtype="<f4").tobytes()
    with pytest.raises(ProtocolError) as refusal:
        decode(3, IDS + values, 2, vocabulary_size=2, legal_size=2)  # type: ignore[arg-type]
    assert refusal.value.code is Code.REPRESENTATION_MISMATCH
