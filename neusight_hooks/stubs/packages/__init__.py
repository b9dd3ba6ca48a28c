"""The stubs themselves: the public functions of one package a file, as its manual has them."""
