"""Practice for training alone: conversations half of whose turns ask about the ones before."""

from __future__ import annotations

from training.data.conversation import Conversation, seeded
from training.data.dialogue import Fact, Turn, look_back, next_turn, tell
from training.data.practice import messages

_THINKING = 0.65  # what looks back in writing is what loses its place


def back_talk(split: str, index: int) -> Conversation:
    rng = seeded(split, "back_talk", index)
    thinking = rng.random() < _THINKING
    told: dict[Fact, str] = {}
    turns: list[Turn] = []
    for _ in range(rng.randint(3, 5)):
        kind, turn = rng.random(), None
        if kind < 0.2:
            turn = tell(rng, told)
        elif turns and kind < 0.75:
            turn = look_back(rng, turns)
        turns.append(turn or next_turn(rng, split, turns, told, last=True))
    return Conversation("back_talk", messages(turns, thinking), thinking=thinking)
