"""What an able model would answer to each scenario of `canitoolcall probe`, and a worker process that says it.

Run it as `python -m tests.support.probe_worker --listen ADDRESS`.
"""

import argparse
import signal

from engine.runtime.mailroom import Stopping
from engine.wire.messages import Message, Submit
from tests.support.live_gateway import ids_of, prompts
from tests.support.scripted_worker import ScriptedWorker, finished, tokens_of

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


def answer_ids(request: Submit) -> list[int]:
    prompt = prompts().text(request.prompt_ids)
    return ids_of(next(text for words, text in ANSWERS.items() if words in prompt))


class _ProbeWorker(ScriptedWorker):
    def take(self, request: Submit) -> list[Message]:
        ids = answer_ids(request)
        messages: list[Message] = [tokens_of(request, (token,), None) for token in ids[:-1]]
        return [*messages, tokens_of(request, (ids[-1],), "stop"), finished(request, len(ids))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True)
    worker = _ProbeWorker(parser.parse_args().listen, progress_deadline_s=60, max_model_len=8192)
    signal.signal(signal.SIGTERM, lambda *_: worker.mailroom.inbox.put(Stopping()))
    worker.run()


if __name__ == "__main__":
    main()
