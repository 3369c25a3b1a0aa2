from vllm.exceptions import VLLMServerError


class EngineDeadError(VLLMServerError):
    def __init__(self, *args: object, suppress_context: bool = False, **kwargs: object) -> None:
        super().__init__("the stand-in's engine is dead", *args)
        del suppress_context, kwargs
