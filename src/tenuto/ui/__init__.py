"""A web page to look at schedules and try them (extra `ui`)."""
