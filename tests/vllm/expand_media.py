"""vLLM's processor of Dots3 NOTE over what our worker hands it: `python -m tests.vllm.expand_media FOLDER TEXT_MODEL`.

Prints as JSON the placeholders that our prompt had and those that vLLM has written out. Run by vLLM's environment. Its
model has code for GPUs alone, so that the processor is loaded without it, beside the settings of a text model.
"""

import json
import logging
import sys
import types
from pathlib import Path

import numpy as np
import vllm

from engine.vllm.media import prompt_of
from engine.wire.messages import MediaData, MediaItem, Sampling, Submit

logging.disable()
_package = types.ModuleType("vllm.models.dots3_note")
_package.__path__ = [str(Path(vllm.__path__[0]) / "models" / "dots3_note")]
sys.modules["vllm.models.dots3_note"] = _package

from vllm.config import ModelConfig  # noqa: E402  behind the package that stands for the model
from vllm.config.multimodal import MultiModalConfig  # noqa: E402
from vllm.models.dots3_note.common import processor as dots3  # noqa: E402
from vllm.multimodal.processing import InputProcessingContext  # noqa: E402
from vllm.multimodal.processing.context import TimingContext  # noqa: E402
from vllm.multimodal.processing.inputs import ProcessorInputs  # noqa: E402
from vllm.tokenizers import cached_tokenizer_from_config  # noqa: E402

SIDE, STRIDE = 28, 1280
# Larger and smaller than the pixels that vLLM's own planner would allow; a sound of less than a whole token at its end.
PICTURES, SOUNDS = ((2, 4), (1, 1), (60, 40)), (8_000, 1_280)


def submit(vocabulary: dict[str, int]) -> Submit:
    ids, media, content = [5], [], b""

    def add(kind: str, shape: tuple[int, ...], num_tokens: int, begin: str, pad: str, end: str, data: bytes) -> None:
        nonlocal content
        ids.append(vocabulary[begin])
        media.append(MediaItem(kind, len(ids), num_tokens, shape, bytes([len(media)]) * 32, len(content)))  # type: ignore[arg-type]
        ids.extend([vocabulary[pad]] * num_tokens + [vocabulary[end]])
        content += data

    for high, wide in PICTURES:
        shape = (high * SIDE, wide * SIDE, 3)
        marks = (dots3.IMAGE_START, dots3.IMAGE_PAD, dots3.IMAGE_END)
        add("image", shape, high * wide, *marks, np.full(shape, 7, np.uint8).tobytes())
    for samples in SOUNDS:
        marks = (dots3.AUDIO_START, dots3.AUDIO_PAD, dots3.AUDIO_END)
        add("audio", (samples,), -(-samples // STRIDE), *marks, np.zeros(samples, np.float32).tobytes())
    data = MediaData(len(content), inline=content)
    return Submit("r", tuple(ids), Sampling(max_tokens=1), media=tuple(media), media_data=data)


def main(folder: str, text_model: str) -> None:
    config = ModelConfig(model=text_model, dtype="float32", max_model_len=1024)
    config.model = config.tokenizer = folder
    config.multimodal_config = MultiModalConfig()
    tokenizer = cached_tokenizer_from_config(config)
    info = dots3.Dots3NoteProcessingInfo(InputProcessingContext(config, tokenizer))
    processor = dots3.Dots3NoteMultiModalProcessor(info, dots3.Dots3NoteDummyInputsBuilder(info))
    asked = submit(tokenizer.get_vocab())
    prompt = prompt_of(asked, kinds=("image", "audio"))
    inputs = ProcessorInputs(
        prompt=prompt.token_ids,
        mm_data_items=info.parse_mm_data(prompt.data),
        mm_uuid_items=prompt.identities,
        hf_processor_mm_kwargs=prompt.processor_options,
    )
    made = processor.apply(inputs, TimingContext(enabled=False))
    placed = {kind: [[one.offset, one.length] for one in places] for kind, places in made["mm_placeholders"].items()}
    sys.stdout.write(json.dumps({"ours": asked.prompt_ids, "vllms": made["prompt_token_ids"], "placed": placed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
