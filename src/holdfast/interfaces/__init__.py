"""What people and programs meet: each reads and acts only through `holdfast.ops`."""
