"""Which releases of torch work, and what of their internals neusight relies on."""
