"""Brokers as they are: records in from their streams, messages out to them, nothing acknowledged early."""
