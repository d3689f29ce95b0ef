"""Plugins that break one rule each, and the suites that must say so: `fails` are the tests that see it, and no others.

Not collected by themselves: test_kit_catches runs them.
"""
