"""`canitoolcall probe` against the gateway, before an engine that answers each scenario as an able model would."""

import pytest
from canitoolcall.probe import BUILTIN_SCENARIOS, probe

from engine.wire.messages import Submit
from tests.support.fake_engine import Say, Step
from tests.support.live_gateway import MODEL, LiveGateway, ids_of, prompts

THOUGHT = "<think>\nThe user wants this. I could write <tool_call>, but no.\n</think>\n\n"


def call(name: str, **arguments: str) -> str:
    given = "".join(f'<parameter name="{key}">\n{value}\n</parameter>\n' for key, value in arguments.items())
    return f'\n<dots_function_call>\n<invoke name="{name}">\n{given}</invoke>\n</dots_function_call>'


# By what the last user turn says, or by a tool's result; the first that is found counts.
ANSWERS = {
    '"sky": "clear"': THOUGHT + "It is 18 °C and clear in Paris.",
    "in Paris and in Tokyo": THOUGHT + call("get_weather", city="Paris") + call("get_weather", city="Tokyo"),
    "weather in Paris": THOUGHT + "I look it up." + call("get_weather", city="Paris", unit="c"),
    "17 + 25": THOUGHT + "42",
    "Design review": THOUGHT
    + call(
        "create_event",
        title="Design review",
        start="2026-10-01T15:00:00Z",
        attendees='[{"name": "Ana", "email": "ana@example.com"}, {"name": "Bo", "email": "bo@example.com"}]',
        location='{"city": "Berlin", "room": "4.12"}',
    ),
    "Grüße aus Zürich": THOUGHT + call("save_note", title="Grüße aus Zürich", body="Café ☕ in 東京 — naïve résumé 🚀"),
    "time is it on the server": call("get_server_time"),
    "about Lisbon": THOUGHT + call("get_weather", city="Lisbon"),
    "9.11 or 9.9": THOUGHT + call("record_answer", answer="9.9"),
}


def answer(request: Submit) -> list[Step]:
    prompt = prompts().text(request.prompt_ids)
    said = next(text for words, text in ANSWERS.items() if words in prompt)
    return [Say(ids_of(said), 0, "stop")]


@pytest.mark.e2e
def test_every_scenario_passes_streamed_and_whole(gateway: LiveGateway) -> None:
    gateway.engine.script = answer
    report = probe(gateway.url + "/v1", MODEL, timeout_s=20)
    assert report.summary() == {"pass": 3 * len(BUILTIN_SCENARIOS), "fail": 0, "error": 0, "skip": 0}, (
        report.render_text()
    )
    assert len(BUILTIN_SCENARIOS) == 9
