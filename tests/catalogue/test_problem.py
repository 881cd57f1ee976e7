"""The page of a problem as learners read it."""

from shardlab.catalogue.tracks import load_catalogue

SENTENCE = "The judge traces the function as `jax.jit` does"


def test_each_page_of_a_program_says_once_that_it_is_traced():
    for slug, problem in load_catalogue().problems.items():
        has_program = any(part.kind == "program" for part in problem.parts)
        assert problem.page.count(SENTENCE) == has_program, slug


def test_a_page_is_the_statement_with_one_paragraph_more():
    problem = load_catalogue().load_problem("shard-map-psum")
    blocks = problem.page.split("\n\n")
    (added,) = [block for block in blocks if SENTENCE in block]
    assert blocks[blocks.index(added) + 1] == "## Examples"
    blocks.remove(added)
    assert "\n\n".join(blocks) == problem.read_text("statement.md")
