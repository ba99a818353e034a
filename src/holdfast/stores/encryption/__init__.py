"""Encryption of stored values: `columns` lists them by statement, `encryption` encrypts what the statements of an operation
write and decrypts what they return, and `aes_gcm` is a cipher. All drivers and both dialects use the same code."""
