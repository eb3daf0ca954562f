"""Pictures and pages: what people would rather look at than read."""
