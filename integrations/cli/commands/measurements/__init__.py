"""Commands about measurements: taking them, learning from them, being judged by them."""
