"""Flow control as a whole: worker processes that are killed, and an oracle that reads what they did from a log of the database."""
