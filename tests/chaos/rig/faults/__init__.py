"""
The faults that strike from outside, one class for each, in files by what they strike.

`strike` begins a fault and `heal` ends it; neither waits. `detail` says, once it has struck, what was
done to whom. A fault that finds no victim strikes nothing and returns False.
"""

from __future__ import annotations

from rig.faults.clock import SteppedClock
from rig.faults.fault import Fault
from rig.faults.memory import FullMemory
from rig.faults.network import Partition, Slowness
from rig.faults.processes import Freeze, Kill
from rig.faults.server import LostData, LostScripts, Restart

CLASSES: dict[str, type[Fault]] = {
    "F1": Kill,
    "F2": Freeze,
    "F3": Restart,
    "F4": LostData,
    "F5": LostScripts,
    "F6": Partition,
    "F7": Slowness,
    "F9": FullMemory,
    "F10": SteppedClock,
}

__all__ = ["CLASSES", "Fault"]
