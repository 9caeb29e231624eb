"""Numba kernels and their numpy references, one file a code; import them as `mpisgd.kernels`.

Every kernel takes flat 1-D arrays that the caller owns, inputs first and outputs last, and
allocates nothing. Importing this package imports no numba; importing a module of it does.
"""
