"""How long collectives take: inside nodes, between them, and what they cost who runs beside."""
