"""
WHAT OTHERS SEE. Each observer is a function of one frozen event.

It may fail: the emitter logs that and the lease goes on.
"""
