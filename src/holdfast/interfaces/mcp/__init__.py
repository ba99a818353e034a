"""Tools for agents over the Model Context Protocol: what operators see, and the replay of one dead letter."""
