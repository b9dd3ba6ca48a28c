"""Nested tensors of the strided layout: sequences one behind the other, and their lengths."""
