"""Calls of a module that repeat before training begins, recorded without running them again."""
