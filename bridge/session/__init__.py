"""A session with a provider, embedded in the host's process: a connection, a conversation, and the calls that run."""
