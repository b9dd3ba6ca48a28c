"""What the target GPU would answer: torch.cuda, its clock, its memory, its choices."""
