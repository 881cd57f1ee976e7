"""HLO text -> the collectives and FLOPs of a compiled program. Standard library only."""
