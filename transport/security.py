"""CURVE on a link: who may connect here, and whom a connection trusts.

CURVE (ZeroMQ RFC 25 and 26) encrypts and authenticates both ends with
Curve25519 keys. A listener lets in exactly the public keys it was given (ZAP,
RFC 27); a connection talks to exactly the public key it was given. libzmq asks
no questions of a handler that is missing, so the listener enforces its domain:
without the handler nobody gets in.

Key files are ZeroMQ's own certificates, as ``zmq.auth`` and czmq write them.
"""

import logging
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq
from zmq.auth import create_certificates, load_certificate
from zmq.auth.thread import ThreadAuthenticator

from proto_v2.errors import Code, ProtocolError

_DOMAIN: Final = "pp1"
_Z85_KEY_BYTES: Final = 40
_LOG: Final = logging.getLogger("pp1.security")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public key and its secret, in Z85 as ZeroMQ writes them."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ListenKeys:
    """A listener's own keys and the public keys that may connect."""

    own: KeyPair
    allowed: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class ConnectKeys:
    """A connection's own keys and the public key of the one listener it trusts."""

    own: KeyPair
    server: bytes


def create_key(base: Path) -> tuple[Path, Path]:
    """Make a key pair: ``BASE.key`` to give away, ``BASE.key_secret`` to keep (mode 0600).

    Raises ``ProtocolError(CONFIG_INVALID)`` where a file exists or cannot be written.
    """
    public, secret = base.with_name(f"{base.name}.key"), base.with_name(f"{base.name}.key_secret")
    for path in (public, secret):
        if path.exists():
            raise ProtocolError(Code.CONFIG_INVALID, "name", "a new file", f"{path} exists")
    before = os.umask(0o077)
    try:
        create_certificates(base.parent, base.name)
        public.chmod(0o644)
    except OSError as error:
        raise ProtocolError(
            Code.CONFIG_INVALID, "name", "a place for two files", f"{base}: {error.strerror}"
        ) from error
    finally:
        os.umask(before)
    return public, secret


def _load(option: str, path: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = load_certificate(path)
    except (OSError, ValueError) as error:
        raise ProtocolError(
            Code.CONFIG_INVALID, option, "a CURVE certificate", f"{path}: {error}"
        ) from error
    for key in (public, secret):
        if key is not None and len(key) != _Z85_KEY_BYTES:
            raise ProtocolError(
                Code.CONFIG_INVALID,
                option,
                f"keys of {_Z85_KEY_BYTES} Z85 characters",
                f"{path}: {len(key)} characters",
            )
    return public, secret


def read_own(option: str, path: Path) -> KeyPair:
    """The key pair of a secret certificate that nobody else can read.

    Raises ``ProtocolError(CONFIG_INVALID)`` naming ``option``.
    """
    public, secret = _load(option, path)
    if secret is None:
        raise ProtocolError(
            Code.CONFIG_INVALID, option, "a secret certificate", f"{path}: a public one"
        )
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ProtocolError(
            Code.CONFIG_INVALID,
            option,
            "a file that only its owner can read (chmod 600)",
            f"{path}: mode {stat.S_IMODE(path.stat().st_mode):04o}",
        )
    return KeyPair(public, secret)


def read_public(option: str, path: Path) -> bytes:
    """The public key of a certificate. Raises ``ProtocolError(CONFIG_INVALID)``."""
    return _load(option, path)[0]


@dataclass(frozen=True, slots=True)
class Keys:
    """What one process has: its own keys, if any, and the public keys that may connect."""

    own: KeyPair | None
    allowed: frozenset[bytes]

    def listen(self) -> ListenKeys | None:
        """For the process's listener; None leaves it open."""
        if self.own is None or not self.allowed:
            return None
        return ListenKeys(self.own, self.allowed)

    def connect(self, option: str, path: Path | None) -> ConnectKeys | None:
        """For a connection to the owner of the certificate at ``path``, if one is given.

        Raises ``ProtocolError(CONFIG_INVALID)`` naming ``option``.
        """
        if path is None:
            return None
        if self.own is None:
            raise _needs_own(option)
        return ConnectKeys(self.own, read_public(option, path))


def read_keys(own: Path | None, allowed: Iterable[Path]) -> Keys:
    """The keys of the options ``curve-key`` and ``allow-key``.

    Raises ``ProtocolError(CONFIG_INVALID)`` naming the option.
    """
    pair = None if own is None else read_own("curve-key", own)
    public = frozenset(read_public("allow-key", path) for path in allowed)
    if public and pair is None:
        raise _needs_own("allow-key")
    return Keys(pair, public)


def must_be_used(keys: Keys, options: str, *trusted: ConnectKeys | None) -> None:
    """Refuse own keys that no link would use: who gives them expects every link guarded.

    Raises ``ProtocolError(CONFIG_INVALID)`` naming ``options``.
    """
    if keys.own is not None and not keys.allowed and not any(trusted):
        raise ProtocolError(
            Code.CONFIG_INVALID, options, "a peer's certificate, for curve-key", "none"
        )


def _needs_own(option: str) -> ProtocolError:
    return ProtocolError(Code.CONFIG_INVALID, "curve-key", f"a certificate, for {option}", "none")


class _Allowed:
    """Answers ZAP requests; a refusal is logged, for libzmq tells nobody here."""

    def __init__(self, link: str, keys: frozenset[bytes]) -> None:
        self._link = link
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether this public key may connect."""
        allowed = key in self._keys
        if not allowed:
            _LOG.warning("link %s refused the public key %s", self._link, key.decode("ascii"))
        return allowed


def guard(
    link: str,
    context: "zmq.Context[zmq.Socket[bytes]]",
    socket: "zmq.Socket[bytes]",
    keys: ListenKeys,
) -> ThreadAuthenticator:
    """Make a listening socket speak CURVE only; stop what is returned before the context."""
    door = ThreadAuthenticator(context)  # type: ignore[no-untyped-call,unused-ignore]
    door.start()
    door.configure_curve_callback(_DOMAIN, _Allowed(link, keys.allowed))
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_PUBLICKEY, keys.own.public)
    socket.set(zmq.CURVE_SECRETKEY, keys.own.secret)
    socket.set(zmq.ZAP_DOMAIN, _DOMAIN.encode())
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return door


def trust(socket: "zmq.Socket[bytes]", keys: ConnectKeys) -> None:
    """Make a connecting socket speak CURVE with one listener only."""
    socket.set(zmq.CURVE_PUBLICKEY, keys.own.public)
    socket.set(zmq.CURVE_SECRETKEY, keys.own.secret)
    socket.set(zmq.CURVE_SERVERKEY, keys.server)
