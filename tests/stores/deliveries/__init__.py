"""Claims, settlements and worker leases."""
