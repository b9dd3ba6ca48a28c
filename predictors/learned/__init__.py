"""What measurements teach beyond the physics: small networks on features."""
