"""Callers' connections (`conn=`): one adapter per driver or framework, without importing the drivers.

`connection` selects the adapter and runs operations on it, `caller_transaction` checks a connection before the first
write, `sqlalchemy` and `django` adapt the frameworks, `sqlite_autobegin` handles implicit SQLite transactions, and
`durability` warns about SQLite settings that can lose commits.
"""
