"""What handler functions are and what they receive: parameters, context, progress and results."""
