"""The vendors of GPUs, as a node knows them.

A vendor's file has a class that is used without instances, with

- ``name``: of its devices in a container, for the controller's vendor of the same name
- ``reports``: {name: command} of programs whose output is sent unchanged; ``instead``: commands to
  run where the first of these is not installed
- ``listings``, ``pid``: the reports that list processes, and the pattern of a process id in them
- ``texts``: {name: file} of kernel files that are sent too; ``log_word``: a word in lines of the
  kernel's log to send; ``peer_modules``: modules, one of which lets network cards read its memory
- ``driver``: a file of the kernel that changes with the driver
- ``opened``: how paths begin that a process which uses a GPU has open
- ``devices``: a pattern of paths, one for each GPU
- ``by_uuid``: the variable that takes UUIDs of the GPUs that a program may use
- ``numbered_gpus(root)``: [PCI address, UUID] of every GPU, as programs number them
- ``serials(root, gpus, text)``: {UUID: serial number} of these, ``text`` being that of ``listings``

The sampling of its GPUs during a run is a row of `telemetry.SAMPLED`. All of this is also in the
wrapper of ranks, so it imports little.
"""

from noderun.amd import Amd
from noderun.nvidia import Nvidia

VENDORS = (Nvidia, Amd)
