"""Installs packages of a run and what its program declares: on the agent's machine, and inside of images.

It is copied to where it runs (`archive`), so it uses the standard library alone, of any Python from 3.8 on, and its
modules import each other by relative names.
"""
