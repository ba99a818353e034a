"""For users' own tests: a real store and a real worker, with failures and time under control."""
