"""What replaces packages that need CUDA to import or to build, where they are not there."""
