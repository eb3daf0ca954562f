"""Tries every pipeline class that diffusers' own fast tests can build: does it work when it is enabled?"""
