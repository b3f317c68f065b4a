"""Key agreement, mask streams and sealed boxes of secure aggregation: real ones, and cheap ones for simulations."""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
from collections.abc import Callable
from typing import Protocol

import numpy as np

from potluck.core.errors import PotluckError

KEY_BYTES = 32
TAG_BYTES = 28
"""Bytes that a sealed box has beyond its content: a nonce of 12 and a tag of 16."""

Draw = Callable[[int], bytes]
"""Returns so many random bytes."""


class BrokenBox(PotluckError):
    """A sealed box that was changed, or was sealed for another pair of parties."""


class Ciphers(Protocol):
    """What secure aggregation needs of a cryptography library. Keys have `KEY_BYTES` bytes."""

    def public_key(self, secret: bytes) -> bytes:
        """Return the public key of a secret key."""

    def shared_key(self, secret: bytes, public: bytes, purpose: bytes) -> bytes:
        """Agree on a key for one purpose: the same for both owners of a pair of keys."""

    def stream(self, key: bytes, count: int) -> bytes:
        """Expand a key that is used once to pseudo-random bytes."""

    def seal(self, key: bytes, content: bytes, label: bytes) -> bytes:
        """Encrypt content; the label is authenticated with it."""

    def unseal(self, key: bytes, box: bytes, label: bytes) -> bytes:
        """Decrypt a box; raise `BrokenBox` where box, key or label are not those of `seal`."""


class SecretCiphers:
    """X25519, HKDF-SHA256, AES-256 in counter mode and ChaCha20-Poly1305 of the `cryptography` library."""

    def __init__(self) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import x25519
            from cryptography.hazmat.primitives.ciphers import aead
        except ImportError:
            raise PotluckError(
                "privacy.secure_sums needs the cryptography library on nodes; pip install 'potluck[flower]'."
            ) from None
        self._x25519, self._aead = x25519, aead

    def public_key(self, secret: bytes) -> bytes:
        """Return the X25519 public key."""
        return bytes(self._x25519.X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw())

    def shared_key(self, secret: bytes, public: bytes, purpose: bytes) -> bytes:
        """Agree by X25519 and derive a key by HKDF; raise `BrokenBox` for a public key of small order."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        try:
            own = self._x25519.X25519PrivateKey.from_private_bytes(secret)
            agreed = own.exchange(self._x25519.X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise BrokenBox("A public key of secure aggregation is not valid.") from None
        return bytes(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(agreed))

    def stream(self, key: bytes, count: int) -> bytes:
        """Expand by AES-256 in counter mode."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES256
        from cryptography.hazmat.primitives.ciphers.modes import CTR

        return bytes(Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(count)))

    def seal(self, key: bytes, content: bytes, label: bytes) -> bytes:
        """Encrypt by ChaCha20-Poly1305 under a random nonce."""
        nonce = os.urandom(12)
        return nonce + bytes(self._aead.ChaCha20Poly1305(key).encrypt(nonce, content, label))

    def unseal(self, key: bytes, box: bytes, label: bytes) -> bytes:
        """Decrypt and authenticate."""
        from cryptography.exceptions import InvalidTag

        try:
            return bytes(self._aead.ChaCha20Poly1305(key).decrypt(box[:12], box[12:], label))
        except (InvalidTag, ValueError):
            raise BrokenBox("A share of secure aggregation was changed on its way.") from None


class SimulatedCiphers:
    """The same interface without secrecy, for simulations: a simulation has all data anyway.

    It needs no cryptography library and takes a fraction of the time; sizes in bytes are those of `SecretCiphers`.
    """

    _PRIME, _BASE = 2**127 - 1, 3

    def public_key(self, secret: bytes) -> bytes:
        """Return a power of the base modulo a small prime."""
        return pow(self._BASE, int.from_bytes(secret, "big"), self._PRIME).to_bytes(KEY_BYTES, "big")

    def shared_key(self, secret: bytes, public: bytes, purpose: bytes) -> bytes:
        """Agree as Diffie and Hellman do, modulo a small prime."""
        return hashlib.sha256(_simulated_agreement(secret, public, self._PRIME) + purpose).digest()

    def stream(self, key: bytes, count: int) -> bytes:
        """Expand by NumPy's Philox generator."""
        return np.random.Generator(np.random.Philox(int.from_bytes(key, "big"))).bytes(count)

    def seal(self, key: bytes, content: bytes, label: bytes) -> bytes:
        """Add a key stream and a tag."""
        hidden = bytes(a ^ b for a, b in zip(content, self.stream(key, len(content)), strict=True))
        return self._tag(key, hidden, label) + hidden

    def unseal(self, key: bytes, box: bytes, label: bytes) -> bytes:
        """Check the tag and remove the key stream."""
        tag, hidden = box[:TAG_BYTES], box[TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(key, hidden, label)):
            raise BrokenBox("A share of secure aggregation was changed on its way.")
        return bytes(a ^ b for a, b in zip(hidden, self.stream(key, len(hidden)), strict=True))

    def _tag(self, key: bytes, hidden: bytes, label: bytes) -> bytes:
        return hashlib.sha256(key + label + hidden).digest()[:TAG_BYTES]


@functools.lru_cache(maxsize=1 << 16)
def _simulated_agreement(secret: bytes, public: bytes, prime: int) -> bytes:
    agreed = pow(int.from_bytes(public, "big"), int.from_bytes(secret, "big"), prime)
    return agreed.to_bytes(KEY_BYTES, "big")
