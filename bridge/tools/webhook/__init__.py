"""HTTP endpoints as tools: what a user says of them, and the source that makes tools of it."""

from .declaration import HttpTool, Parameter, Place
from .signature import signed
from .source import HttpSource

__all__ = ["HttpSource", "HttpTool", "Parameter", "Place", "signed"]
