"""A stand-in for vLLM with its signatures (tests/fixtures/vllm/signatures.json) and no model: it says what it is told.

`FAKE_VLLM` in the environment is a JSON object: `say`, lists of token ids, of which a seed chooses one; `held`, what an
answer says that is held to a grammar; `step_s`; `log`, a file that gets a line for each request and its end. A token −1
is the death of the engine.
"""

from typing import Any, NotRequired, TypedDict

from vllm.sampling_params import SamplingParams

__all__ = ["SamplingParams", "TokensPrompt"]
__version__ = "0.33.0, a stand-in"


class TokensPrompt(TypedDict):
    multi_modal_data: NotRequired[dict[str, Any] | None]
    mm_processor_kwargs: NotRequired[dict[str, Any] | None]
    multi_modal_uuids: NotRequired[Any]
    cache_salt: NotRequired[str]
    prompt_token_ids: list[int]
