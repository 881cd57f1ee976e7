"""What runs inside a confined process. Nothing here decides a verdict; all of it may be lied about.

author   loads the answer, traces and exports it for each mesh; calls it for plain values
runner   never sees the answer: reads and runs exported programs on the hidden inputs
"""
