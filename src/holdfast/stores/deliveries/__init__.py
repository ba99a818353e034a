"""Running deliveries: claims, settlements, worker leases, deduplication."""
