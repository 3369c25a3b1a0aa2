"""Practice in reading declarations: questions about the declared functions, answered from their schemas.

Only trained on, never examined. An answer is a name, names in the order of the schema, a type, or yes or no.
"""

from __future__ import annotations

import random

from training.data.conversation import Conversation, seeded
from training.data.tool_exchanges import REFUSAL, wish
from training.data.tool_requests import request_for
from training.data.tool_schemas import Function, Parameter, action, outside, toolbox
from training.data.tool_turns import Call, Step, argument_lines, choice, chosen, different, no_choice, talk_of
from training.data.tool_values import below, pick

_NONE = "None."
_Turn = tuple[str, Step]  # question and answer


def schema_talk(split: str, index: int) -> Conversation:
    """Five to eight different questions to one toolbox."""
    rng = seeded(split, "schema_talk", index)
    tools = toolbox(rng, pick(rng, (1, 1, 2, 2, 3, 4)))
    with_parameters = [tool for tool in tools if tool.parameters]

    def ask() -> _Turn:
        draw = pick(rng, _QUESTIONS if with_parameters else _QUESTIONS_OF_FUNCTIONS)
        return draw(rng, tools if draw in _QUESTIONS_OF_FUNCTIONS else with_parameters)

    return talk_of(rng, "schema_talk", tools, different(5 + below(rng, 4), ask))


def _which(rng: random.Random, tools: list[Function]) -> _Turn:
    """The function for what is to be done, or that there is none."""
    known = rng.random() < 0.8
    tool = pick(rng, tools) if known else outside(rng, tools)
    doing = action(rng, tool.topic, tool.verb)
    form = pick(rng, ("Which function can {}?", "Which function do I need to {}?", "What is the function to {}?"))
    question = form.format(doing.words)
    if not known:
        return _chosen(question, no_choice(wish(doing), tool.meaning), REFUSAL)
    return _chosen(question, chosen(wish(doing), tool), tool.name)


def _fitting(rng: random.Random, tools: list[Function]) -> _Turn:
    """The function for a whole request."""
    tool = pick(rng, tools)
    doing, request = request_for(rng, Call(tool, tool.draw(rng)))
    form = pick(rng, ("Which function fits this request?\n{}", "Which function is this for?\n{}"))
    return _chosen(form.format(request), chosen(wish(doing), tool), tool.name)


def _given(rng: random.Random, tools: list[Function]) -> _Turn:
    """The parameters that a request gives."""
    tool = pick(rng, tools)
    call = Call(tool, tool.draw(rng))
    doing, request = request_for(rng, call)
    form = pick(rng, ("Which parameters does this request give?\n{}", "Which parameters are given here?\n{}"))
    return _chosen(form.format(request), choice(wish(doing), call), ", ".join(call.arguments) or _NONE)


def _bound(rng: random.Random, tools: list[Function]) -> _Turn:
    """The parameters that a request gives, with their values, as a call would have them."""
    tool = pick(rng, tools)
    call = Call(tool, tool.draw(rng))
    doing, request = request_for(rng, call)
    form = pick(rng, ("Which values does this request give?\n{}", "Which values are given here?\n{}"))
    return _chosen(form.format(request), chosen(wish(doing), tool), "\n".join(argument_lines(call)) or _NONE)


def _meaning(rng: random.Random, tools: list[Function]) -> _Turn:
    tool = pick(rng, tools)
    form = pick(rng, ("What does {} do?", "What is {} for?"))
    return _turn(form.format(tool.name), _thought(f"what {tool.name} does"), tool.meaning)


def _parameters(rng: random.Random, tools: list[Function]) -> _Turn:
    tool = pick(rng, tools)
    form = pick(rng, ("Which parameters has {}?", "What are the parameters of {}?", "List the parameters of {}."))
    return _turn(form.format(tool.name), _thought(f"the parameters of {tool.name}"), _names(tool.parameters) or _NONE)


def _required(rng: random.Random, tools: list[Function]) -> _Turn:
    """The required parameters, or the others."""
    tool, wanted = pick(rng, tools), rng.random() < 0.6
    which = "required" if wanted else "optional"
    form = pick(rng, ("Which parameters of {} are {}?", "Which of the parameters of {} are {}?"))
    thought = _thought(f"the {which} parameters of {tool.name}", tool)
    found = _names(tuple(p for p in tool.parameters if p.required == wanted))
    return _turn(form.format(tool.name, which), thought, found or _NONE)


def _is_required(rng: random.Random, tools: list[Function]) -> _Turn:
    tool = pick(rng, tools)
    parameter, which = pick(rng, tool.parameters), pick(rng, ("required", "optional"))
    required = _names(tuple(p for p in tool.parameters if p.required)) or "none"
    thought = f"The user asks if {parameter.name} is {which}.\nrequired: {required}"
    answer = "Yes." if parameter.required == (which == "required") else "No."
    return _turn(f"Is {parameter.name} of {tool.name} {which}?", thought, answer)


def _type(rng: random.Random, tools: list[Function]) -> _Turn:
    tool = pick(rng, tools)
    name = pick(rng, tool.parameters).name
    form = pick(rng, ("What type is {} of {}?", "What is the type of {} of {}?", "Which type has {} of {}?"))
    found = next(p.schema["type"] for p in tool.parameters if p.name == name)
    return _turn(form.format(name, tool.name), _thought(f"the type of {name}"), found)


def _choices(rng: random.Random, tools: list[Function]) -> _Turn:
    """The values of an enum, or the fields of an object."""
    compound = [(t, p) for t in tools for p in t.parameters if p.kind.type in ("enum", "object")]
    if not compound:
        return _type(rng, tools)
    tool, parameter = pick(rng, compound)
    if parameter.kind.type == "object":
        question = f"Which fields has {parameter.name} of {tool.name}?"
        return _turn(question, _thought(f"the fields of {parameter.name}"), _names(parameter.fields))
    question = f"Which values can {parameter.name} of {tool.name} have?"
    return _turn(question, _thought(f"the values of {parameter.name}"), ", ".join(parameter.schema["enum"]))


def _place(rng: random.Random, tools: list[Function]) -> _Turn:
    """A parameter by its place in the schema."""
    tool = pick(rng, tools)
    place = below(rng, len(tool.parameters))
    form = pick(rng, ("What is the {} of {}?", "Which is the {} of {}?"))
    what = "last parameter" if place and place == len(tool.parameters) - 1 else f"{_ORDINALS[place]} parameter"
    if place and rng.random() < 0.6:
        what = f"parameter after {tool.parameters[place - 1].name}"
    return _turn(form.format(what, tool.name), _thought(f"the {what}", tool), tool.parameters[place].name)


def _owner(rng: random.Random, tools: list[Function]) -> _Turn:
    """The functions that have a parameter."""
    name = pick(rng, pick(rng, tools).parameters).name
    found = [tool.name for tool in tools if any(p.name == name for p in tool.parameters)]
    form = pick(rng, ("Which functions have the parameter {}?", "Which functions take {}?"))
    return _turn(form.format(name), _thought(f"the functions with {name}"), ", ".join(found))


def _functions(rng: random.Random, tools: list[Function]) -> _Turn:
    form = pick(rng, ("Which functions are there?", "List the functions.", "What are the names of the functions?"))
    return _turn(form, _thought("the functions"), ", ".join([tool.name for tool in tools]))


_QUESTIONS_OF_FUNCTIONS = (_which, _which, _which, _fitting, _fitting, _meaning, _parameters, _functions)
_QUESTIONS = (
    *_QUESTIONS_OF_FUNCTIONS, _parameters, _given, _bound, _bound, _required, _required, _is_required, _type, _choices,
    _place, _place, _owner,
)  # fmt: skip
_ORDINALS = ("first", "second", "third", "fourth")


def _names(parameters: tuple[Parameter, ...]) -> str:
    return ", ".join([parameter.name for parameter in parameters])


def _turn(question: str, thought: str, answer: str) -> _Turn:
    return question, Step(thought, answer)


def _chosen(question: str, thought: str, answer: str) -> _Turn:
    return question, Step(thought, answer, chooses=True)


def _thought(what: str, tool: Function | None = None) -> str:
    """What is asked for; with a function, also all of its parameters."""
    return f"The user asks for {what}." + (f"\nparameters: {_names(tool.parameters)}" if tool else "")
