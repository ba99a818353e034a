"""What happens to an exception: `classify` gives a verdict, `report` a storable record, `fingerprint` a group."""
