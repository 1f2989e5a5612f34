"""Typed settings of agents, one file per provider."""
