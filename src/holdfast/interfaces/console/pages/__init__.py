"""Pages: functions that read through `ops` and return the data of a template."""
