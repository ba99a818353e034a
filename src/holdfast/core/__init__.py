"""The rules of Holdfast as pure values and functions: no I/O, no clock, no randomness, no driver."""
