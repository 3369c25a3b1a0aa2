"""Every liberty the tool-call parser takes with a text that is not what the template would have written.

One entry per rule; parsers count under these names, and a gateway can show the counts. Both modes, streamed and
whole, apply the same ones, for there is only one state machine.
"""

from __future__ import annotations

from enum import StrEnum


class Repair(StrEnum):
    # Tags
    INVOKE_EQUALS = "invoke_equals"  # `<invoke="tool">`: the word `name` is missing
    MISSING_BRACKET = (
        "missing_bracket"  # `invoke="tool">` or `invoke name="tool">` right behind the block's opening tag
    )
    SELF_CLOSING = "self_closing"  # `<invoke name="tool"/>`: a call without arguments
    OTHER_QUOTES = "other_quotes"  # a name in single quotes or bare
    EXTRA_ATTRIBUTES = "extra_attributes"  # `<parameter name="key" string="true">`: whatever they say is ignored
    # Tags that are missing, or too many
    MISSING_OPENER = "missing_opener"  # a declared tool's invoke outside a block opens one if a tag of a call follows
    MISSING_PARAMETER_CLOSER = "missing_parameter_closer"  # another tag that counts closes the value
    MISSING_INVOKE_CLOSER = "missing_invoke_closer"
    MISSING_BLOCK_CLOSER = "missing_block_closer"
    EXTRA_CLOSER = "extra_closer"  # a closing tag behind what it would close is dropped
    TEXT_IN_CALL = "text_in_call"  # text between the tags of a call becomes content
    # Values
    CLOSER_IN_VALUE = "closer_in_value"  # a closing tag that nothing legal follows is part of the value
    EXAMPLE_IN_VALUE = "example_in_value"  # a line that is nothing but an opening tag: text up to what closes it
    EXAMPLE_LEFT_OPEN = "example_left_open"  # closing tags that run up to the end of the text close the call
    REPEATED_PARAMETER = "repeated_parameter"  # the first value counts
    PYTHON_LITERAL = "python_literal"  # True, False or None where no string is allowed
    TYPE_MISMATCH = "type_mismatch"  # text that fits no allowed type stays a string
    # Bodies and names
    JSON_BODY = "json_body"  # one JSON object in place of invokes
    UNDECLARED_TOOL = "undeclared_tool"  # reported like any other, with string values
    NO_CALL = "no_call"  # the block's opening tag with no call behind it stays visible text
