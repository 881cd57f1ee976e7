"""Judgements as text, JSON, JUnit and SVG."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from shardlab.judge.counterexample_svg import counterexample_svg
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.judgement_text import judgement_lines, judgement_rich, judgement_text
from shardlab.judge.junit import junit_xml
from shardlab.judge.results_json import results_json
from shardlab.judge.verdict import VERDICTS, Verdict

SVG = "{http://www.w3.org/2000/svg}"

RIGHT = CaseResult(
    name="data=1",
    part=1,
    mesh="data=1",
    seed=11,
    verdicts=(Verdict(code="AC", what="Right on one device."),),
)
WRONG = CaseResult(
    name="data=2",
    part=1,
    mesh="data=2",
    seed=12,
    verdicts=(
        Verdict(
            code="WA",
            what="result is 42, expected 21.",
            where="line 3: return x",
            fix="add once.",
            cause="factor_of_n",
        ),
    ),
    output="\x1b[2Jhello\nthere\0",
    facts={"collectives": [{"op": "psum", "count": 1, "payload_bytes": 4, "wire_bytes": 4}]},
    number=1,
)


def small_case(n_devices, *, holds="20", should="10"):
    devices = [
        {
            "device": number,
            "place": f"data={number}",
            "index": f"[{number}:{number + 1}]",
            "holds": holds,
            "should": should,
            "is_wrong": number > 0,
            "coordinate": [number],
            "elements": {
                "shape": [1],
                "holds": [holds if number else should],
                "expected": [should],
                "wrong": [0] if number else [],
            },
        }
        for number in range(n_devices if n_devices <= 8 else 7)
    ]
    output = {
        "name": "result",
        "array": "float32[8]",
        "expected": "float32[8] [1 2]",
        "asked": "P('data')",
        "n_devices": n_devices,
        "devices": devices,
    }
    facts = {
        "call": "f(x, mesh)",
        "mesh": [["data", n_devices]],
        "inputs": [{"name": "x", "text": "float32[2] [1 2]"}],
    }
    verdicts = (Verdict(code="WA", what="result is 20, expected 10."),)
    return CaseResult(
        name="data=2",
        part=1,
        mesh="data=2",
        seed=99,
        verdicts=verdicts,
        is_example=True,
        facts={**facts, "outputs": [output]},
    )


def make_judgement(*cases, **fields):
    return Judgement(
        problem="one-sum",
        content_version=1,
        level="A",
        seed=5,
        kind="submit",
        cases=cases,
        **fields,
    )


def test_the_terminal_shows_verdict_minimal_case_and_all_cases():
    text = judgement_text(make_judgement(RIGHT, WRONG, counterexample=small_case(2)), 80)
    assert text.splitlines() == [
        "WA: wrong values (data=2)",
        "  result is 42, expected 21.",
        "  at line 3: return x",
        "  try: add once.",
        "  printed while tracing:",
        "    ?[2Jhello",
        "    there?",
        "",
        "Minimal failing case: f(x, mesh) on data=2",
        "  x = float32[2] [1 2]",
        "",
        "  result  float32[8], expected P('data')",
        "    device      index  holds  expected",
        "  ✓ 0 (data=0)  [0:1]  20",
        "  ✗ 1 (data=1)  [1:2]  20     10",
        "",
        "✓ data=1  ✗ data=2 WA",
        "1 of 2 cases passed",
        "level A; seed 5",
    ]


def test_with_verbose_the_conditions_are_written_out():
    lines = list(judgement_lines(make_judgement(RIGHT), 80, verbose=True))
    assert "".join(span.text for span in lines[-1]) == (
        "level A: namespaces, Landlock and seccomp; seed 5; one-sum, content version 1"
    )


def test_the_same_failure_is_explained_for_each_part():
    second = replace(WRONG, part=2, verdicts=(Verdict(code="WA", what="result is 3, expected 4."),))
    text = judgement_text(make_judgement(WRONG, second, replace(second, name="data=8")), 80)
    assert text.count("result is 42, expected 21.") == 1
    assert text.count("result is 3, expected 4.") == 1


def test_parts_are_numbered_where_there_are_several():
    second = replace(WRONG, part=2)
    assert judgement_text(make_judgement(RIGHT, second), 80).startswith(
        "WA: wrong values (part 2, data=2)\n"
    )
    early = make_judgement(WRONG, not_judged=("part 1, data=4", "part 2, data=2"))
    assert "part 1: ✗ data=2 WA" in judgement_text(early, 80)


def test_right_values_are_not_listed_if_something_else_fails():
    right = small_case(2)
    (output,) = right.facts["outputs"]
    devices = [{**device, "is_wrong": False} for device in output["devices"]]
    facts = {**right.facts, "outputs": [{**output, "devices": devices}]}
    over = replace(
        right, facts=facts, verdicts=(Verdict(code="COMM", what="2 psum of 4 B; budget 1."),)
    )
    text = judgement_text(make_judgement(WRONG, counterexample=over), 80)
    assert "✓ 0" not in text
    assert (
        "  Every device holds the correct values. What fails in this case:\n"
        "  COMM: 2 psum of 4 B; budget 1.\n"
    ) in text


def test_a_long_call_is_broken_between_words():
    long = small_case(2)
    call = "partition_spec_layout(num_devices, kernel_in, kernel_out)"
    long = replace(long, facts={**long.facts, "call": call})
    lines = judgement_text(make_judgement(WRONG, counterexample=long), 70).splitlines()
    position = lines.index("Minimal failing case: partition_spec_layout(num_devices, kernel_in,")
    assert lines[position + 1] == "  kernel_out) on data=2"


@pytest.mark.parametrize("evil", ["\x1b[2J", "\x9b2J", "\x07", "\u202e"])
def test_nothing_of_a_submission_moves_the_cursor(evil):
    verdict = Verdict(code="RTE", what=f"a{evil}", where=f"line 1: {evil}", fix=evil, shows=(evil,))
    case = replace(small_case(2, holds=evil, should=evil), verdicts=(verdict,), output=f"x\n{evil}")
    facts = {**case.facts, "call": f"f({evil})", "inputs": [{"name": evil, "text": evil}]}
    judgement = make_judgement(case, notes=(evil,), counterexample=replace(case, facts=facts))
    reports = [
        judgement_text(judgement, 80),
        junit_xml(judgement),
        json.dumps(results_json(judgement), ensure_ascii=False),
        counterexample_svg(judgement.counterexample),
    ]
    assert [evil[0] in report for report in reports] == [False] * 4


@pytest.mark.parametrize("n_devices", [1, 8, 512])
@pytest.mark.parametrize("width", [60, 80])
def test_no_line_is_wider_than_the_terminal(n_devices, width):
    wide = "[[1.2345 2.3456 3.4567] [4.5678 5.6789 6.789]]" * 2
    counterexample = small_case(n_devices, holds=wide, should=wide)
    text = judgement_text(
        make_judgement(RIGHT, *[WRONG] * 12, counterexample=counterexample), width
    )
    assert max(map(len, text.splitlines())) <= width
    assert ("more devices" in text) == (n_devices > 8)


def test_values_that_do_not_fit_a_row_have_a_line_each():
    wide = "[1.25 2.25 3.25 4.25 5.25 6.25 7.25]"
    text = judgement_text(
        make_judgement(WRONG, counterexample=small_case(2, holds=wide, should=wide)), 60
    )
    lines = text.splitlines()
    position = lines.index("  ✗ device 1 (data=1)  [1:2]")
    assert lines[position + 1 : position + 3] == [
        f"      holds     {wide}",
        f"      expected  {wide}",
    ]


def test_colour_shows_nothing_that_the_marks_do_not():
    judgement = make_judgement(RIGHT, WRONG, counterexample=small_case(2))
    assert [line.rstrip() for line in judgement_rich(judgement, 80).plain.splitlines()] == (
        judgement_text(judgement, 80).splitlines()
    )
    inks = {span.ink for line in judgement_lines(judgement, 80) for span in line}
    assert {"red", "green"} <= inks


def test_other_kinds_of_failure_are_shown_once_each():
    spec = CaseResult(
        name="rows=4",
        part=1,
        mesh="rows=4",
        seed=13,
        verdicts=(Verdict(code="SPEC", what="No mesh axis 'data'."),),
    )
    text = judgement_text(make_judgement(WRONG, spec, spec), 80)
    assert text.count("No mesh axis 'data'.") == 1
    assert text.count("result is 42") == 1


def test_cases_that_were_not_judged_are_counted_and_never_pass():
    judgement = make_judgement(RIGHT, not_judged=("part 1, data=2",))
    assert not judgement.passed
    assert "1 case not judged after that" in judgement_text(judgement, 80)
    fault = CaseResult(
        name="data=2",
        part=1,
        mesh="data=2",
        seed=1,
        verdicts=(Verdict(code="IE", what="The judge failed."),),
    )
    assert "not counted" in judgement_text(make_judgement(RIGHT, fault), 80)
    assert make_judgement().verdict.code == "IE"


def test_results_have_the_keys_of_exercism_and_ours():
    data = results_json(make_judgement(RIGHT, WRONG, counterexample=small_case(2)))
    assert json.loads(json.dumps(data)) == data
    assert (data["version"], data["status"]) == (3, "fail")
    assert data["message"].startswith("WA: wrong values\n  result is 42, expected 21.")
    assert (data["verdict"]["code"], data["verdict"]["label"]) == ("WA", "wrong values")
    first, second = data["tests"]
    assert (first["name"], first["status"], first["message"]) == ("part 1, data=1", "pass", None)
    assert (second["status"], second["task_id"], second["why"]) == ("fail", 1, "factor_of_n")
    assert second["collectives"][0]["op"] == "psum"
    assert [verdict["label"] for verdict in second["verdicts"]] == ["wrong values"]
    # A hidden case does not show its inputs; the minimal failing case does.
    assert second["inputs"] == []
    assert data["counterexample"]["test_code"] == "x = float32[2] [1 2]\nf(x, mesh)  # data=2"
    assert data["counterexample"]["devices"][0]["devices"][1]["holds"] == "20"


@pytest.mark.parametrize(
    ("code", "status"), [("CE", "error"), ("IE", "error"), ("TLE", "fail"), ("WA", "fail")]
)
def test_a_submission_that_cannot_be_judged_is_an_error(code, status):
    judgement = make_judgement(
        CaseResult(
            name="data=2",
            part=1,
            mesh="data=2",
            seed=1,
            verdicts=(Verdict(code=code, what="It is so."),),
        )
    )
    assert results_json(judgement)["status"] == status


def test_output_is_truncated_at_500_characters():
    loud = CaseResult(
        name="data=2",
        part=1,
        mesh="data=2",
        seed=1,
        verdicts=(Verdict(code="AC", what=""),),
        output="x" * 600,
    )
    (test,) = results_json(make_judgement(loud))["tests"]
    assert len(test["output"]) == 500


def test_junit_is_well_formed_whatever_a_submission_prints():
    judgement = make_judgement(RIGHT, WRONG, not_judged=("part 1, data=4",))
    suite = ElementTree.fromstring(junit_xml(judgement)).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    failure = suite.find("testcase/failure")
    assert failure.get("type") == "WA"
    assert failure.get("message") == "wrong values: result is 42, expected 21."
    assert suite.find("testcase/system-out").text == "?[2Jhello\nthere?"


def svg_texts(case):
    root = ElementTree.fromstring(counterexample_svg(case))
    return [node.text for node in root.iter(f"{SVG}text")], root


def test_the_minimal_case_can_be_drawn_as_svg():
    texts, root = svg_texts(small_case(2))
    assert {"device 0", "device 1", "✓", "✗", "expected", "10"} <= set(texts)
    # The colors are those of the palette, and the wrong device is described in words, too.
    assert 'class="f-wrong' in ElementTree.tostring(root, "unicode").replace("ns0:", "")
    assert "device 1 (data=1) holds 20, expected 10" in root.find(f"{SVG}desc").text


def test_a_picture_without_elements_has_the_text_of_each_device():
    case = small_case(2)
    (output,) = case.facts["outputs"]
    devices = [{**device, "elements": None} for device in output["devices"]]
    old = replace(case, facts={**case.facts, "outputs": [{**output, "devices": devices}]})
    texts, _ = svg_texts(old)
    assert {"20", "10", "device 1"} <= set(texts)


@pytest.mark.parametrize("n_devices", [3, 512])
def test_a_picture_says_how_many_devices_are_left_out(n_devices):
    case = small_case(n_devices)
    n_shown = len(case.facts["outputs"][0]["devices"])
    texts, _ = svg_texts(case)
    left_out = [text for text in texts if "more devices" in text]
    assert left_out == ([f"... {n_devices - n_shown} more devices"] if n_devices > 8 else [])


def test_a_picture_of_right_values_has_the_verdict():
    right = small_case(2)
    (output,) = right.facts["outputs"]
    devices = [{**device, "is_wrong": False} for device in output["devices"]]
    facts = {**right.facts, "outputs": [{**output, "devices": devices}]}
    verdict = Verdict(code="COMM", what="2 psum of 4 B; budget 1.")
    texts, _ = svg_texts(replace(right, facts=facts, verdicts=(verdict,)))
    assert "COMM: 2 psum of 4 B; budget 1." in texts
    assert "device 0" not in texts


def test_an_accepted_submission_has_the_range_of_its_communication():
    def case(name, payload, *, is_simulated=False):
        facts = {"collectives": [{"op": "psum", "count": 1, "payload_bytes": payload}]}
        verdict = Verdict(code="AC", what="Right.")
        return CaseResult(
            name=name,
            part=1,
            mesh=name,
            seed=1,
            verdicts=(verdict,),
            is_simulated=is_simulated,
            facts=facts,
        )

    large = case("data=64", 9, is_simulated=True)
    judgement = make_judgement(
        case("data=2", 4), large, case("data=4", 8), large
    )  # as two parts give it
    assert judgement.verdict.what == (
        "Same result on 2 meshes and, simulated, on data=64; 1 psum of 4 to 8 B."
    )


@pytest.mark.parametrize("code", VERDICTS)
def test_every_code_is_shown_with_its_label(code):
    judgement = make_judgement(replace(WRONG, verdicts=(Verdict(code=code, what="Why."),)))
    title = f"{code}: {VERDICTS[code]}"
    if code != "AC":
        assert judgement_text(judgement, 80).startswith(f"{title} (data=2)\n  Why.\n")
        assert f'message="{VERDICTS[code]}: Why."' in junit_xml(judgement)
    assert results_json(judgement)["tests"][0]["verdicts"][0]["label"] == VERDICTS[code]
    assert str(judgement.cases[0].verdicts[0]).startswith(title)
