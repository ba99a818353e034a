"""What operators can see and do, once: every interface reads and acts through here, and nowhere else."""
