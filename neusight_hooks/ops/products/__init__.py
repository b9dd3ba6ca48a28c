"""Ops that are matrix products, or made of them."""
