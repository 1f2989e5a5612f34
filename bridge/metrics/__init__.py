"""Counts what happens, for Prometheus. `METRICS` is the table of everything that is exported.

`Metrics` watches sessions: it is an observer, `f(session, step)`, of embedded sessions and of the relay alike. What a
call came to is told by the runner (`finished`). Everything that can be read when somebody asks (bytes that went
through, threads in use) is read then and costs nothing before (`add_source`).
"""

from .counting import Metrics
from .reading import Reading, Source, of_runner, page
from .table import METRICS, Kind, Series

__all__ = ["METRICS", "Kind", "Metrics", "Reading", "Series", "Source", "of_runner", "page"]
