"""What all clients ask for: a tool and a form whose every value is bounded, so that an answer ends by itself."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

QUESTION = "Is it windy in Paris?"
# Thinking is free, and weak weights may not come to its end.
NO_THINKING: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


class Forecast(BaseModel):
    """Look up the weather."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]
    windy: bool


def get_weather(city: Literal["Paris", "Rome"], days: Literal[1, 2, 3]) -> str:
    """Get the weather.

    Args:
        city: where
        days: how many
    """
    return f"windy in {city} for {days} days"
