from ..journal.conftest import database, server, worker_id

__all__ = ["database", "server", "worker_id"]
