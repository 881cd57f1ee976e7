"""halves(total, n): total / n for each of n, ValueError where n does not divide."""


def inputs(draw):
    n = 2 + draw.number % 2
    return {"total": 6 * draw.scale + (draw.number > 3), "n": n}


def expected(mesh, total, n):
    if total % n:
        raise ValueError(f"{n} does not divide {total}")
    return dict.fromkeys(range(n), total // n)
