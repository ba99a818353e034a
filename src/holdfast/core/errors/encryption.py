"""Errors about encrypted data in the store. The data stays as it is."""

from __future__ import annotations

from holdfast.core.errors.root import HoldfastError, quoted


class EncryptionKeyMissing(HoldfastError):
    """Stored data is encrypted with a key that this process does not have. A delivery waits for a worker that has it."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return (
            f"the stored data is encrypted with key {quoted(self.key)}, which this process does not have; give it that key, "
            "for example Holdfast(cipher=AesGcm(keys={...})), and restart it"
        )


class DecryptionFailed(HoldfastError):
    """Stored data cannot be decrypted: it was changed, copied from another row, or its key has another value."""

    def __init__(self, key: str, place: str) -> None:
        super().__init__(key, place)
        self.key, self.place = key, place

    def __str__(self) -> str:
        return (
            f"{self.place} cannot be decrypted with key {quoted(self.key)}: the stored text was changed or copied from another "
            "row, or the key has another value than when it was written; correct the key, or restore the row from a backup, "
            "then replay"
        )
