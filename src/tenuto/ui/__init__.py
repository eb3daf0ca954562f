"""A page in the browser to look at schedules and try them (extra `ui`)."""
