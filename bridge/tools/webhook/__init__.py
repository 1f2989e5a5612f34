"""HTTP endpoints as tools: what a user says of them, and the source that makes tools of it."""

from .declaration import HttpTable, HttpTool, Parameter, Place
from .signature import signed
from .source import HttpSource

__all__ = ["HttpSource", "HttpTable", "HttpTool", "Parameter", "Place", "signed"]
