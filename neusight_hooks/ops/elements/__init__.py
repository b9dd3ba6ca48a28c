"""Ops that go through the elements once: pointwise, copies, gathers, and views, which do not."""
