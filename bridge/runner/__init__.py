"""One call to its result, whatever happens: checked, approved, limited, timed, parked, and written down."""
