"""The engine's part of workflows: declared steps, the context of a step, and how a step's outcome advances its run."""
