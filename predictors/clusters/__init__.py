"""What joins GPUs: levels of links and networks, and how the ranks of a group lie on them."""
