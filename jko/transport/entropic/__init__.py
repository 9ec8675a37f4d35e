"""Entropic transport: kernels, the ascent of the dual, self-transport, gradients."""
