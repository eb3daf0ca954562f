"""The default schedule on networks that others trained: do constants chosen on our networks hold elsewhere?"""
