"""SQL files; see `holdfast.stores.statement` and `holdfast.stores.migration`."""
