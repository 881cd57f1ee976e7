"""A check of a large mesh on scaled-down meshes, with the obligations that must hold for it."""
