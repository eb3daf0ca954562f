"""Networks that others trained, each loaded from a folder that the user gives; none is in this repository."""
