"""Workers: claim, run, settle, and take over what others left."""
