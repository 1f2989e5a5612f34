"""`voice-tool-bridge demo`: a call without an account, drawn as it happens."""
