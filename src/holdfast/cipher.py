"""Encryption of what an app stores: `Holdfast(cipher=AesGcm(keys={"2026-11": key}))`. Needs `holdfast[cipher]`."""

from holdfast.core.encryption import Cipher
from holdfast.stores.encryption.aes_gcm import AesGcm

__all__ = ["AesGcm", "Cipher"]
