"""What is held when: storages and workspaces in a GPU's memory."""
