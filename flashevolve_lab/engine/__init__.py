"""The shell: tasks, threads and time."""

from flashevolve_lab.engine.clock import Clock, Scaled, Virtual, VirtualLoop, Wall
from flashevolve_lab.engine.shell import Shell

__all__ = ["Clock", "Scaled", "Shell", "Virtual", "VirtualLoop", "Wall"]
