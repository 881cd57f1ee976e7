"""What runs inside a confined process. Nothing here decides a verdict; all of it may be lied about.

author      answers requests about one submission; has an interpreter in common with it
submission  the answer's source and functions        tracing     shapes in, a program out
placing     what may be done outside of a jit        simulating  large meshes, device by device
results     what a function returned, as arrays      told        exceptions as data
eager       what was made outside of a jit           dump        the line at which time was up
examples    scripts and doctests of a page
runner      never sees the answer: runs exported programs on the hidden inputs
programs    hostile bytes, refused before they compile           quickly  how they are compiled
calls       what devices send each other             outputs     what each of them holds
meshes      the mesh of a case on real host devices
warm        what the fork server does before all of them, once
"""
