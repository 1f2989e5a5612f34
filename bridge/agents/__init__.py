"""Typed settings of the providers' agents, a file each, for `connect` and for hosts of their own."""
