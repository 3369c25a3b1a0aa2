"""Pictures: sizes, colours and patches against the goldens, and the kinds of file that go wrong elsewhere."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms

from multimodal.file_limits import FileLimits
from multimodal.image import ImageLimits, SizeOverrides, normalise, order_patches, plan_size, resize, upright_rgb
from tests.multimodal import goldens
from tests.support.media_fixture_adapter import LIMITS, MEAN, STD, plan_image

MEDIA_FILES = {entry["file"]: entry for entry in goldens.manifest()["files"]}


def encoded(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=image_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("case", goldens.cases("image_plan.jsonl"), ids=lambda case: case["id"])
def test_planned_size_is_the_golden_one(case: dict[str, Any]) -> None:
    if "error" in case["out"]:
        refusal = {"side_too_small": "at least 7 pixels", "aspect_ratio_over_200": "200 times"}[case["out"]["error"]]
        with pytest.raises(ValueError, match=refusal):
            plan_image(case["in"])
    else:
        assert plan_image(case["in"]) == case["out"]


@pytest.mark.parametrize("case", goldens.cases("images.jsonl"), ids=lambda case: case["file"])
def test_patches_of_a_file_are_the_golden_ones(case: dict[str, Any]) -> None:
    rgb = upright_rgb((goldens.FOLDER / case["file"]).read_bytes())
    height, width = rgb.shape[:2]
    size = plan_size(height, width, LIMITS)
    assert size == (case["resized_h"], case["resized_w"])

    patches = normalise(order_patches(resize(rgb, *size)), LIMITS)

    assert patches.dtype == np.float32
    assert list(patches.shape) == case["patches_shape"]
    rows, columns, values = zip(*case["samples"], strict=True)
    np.testing.assert_allclose(patches[list(rows), list(columns)], values, rtol=0, atol=1e-5)
    assert patches.mean(dtype=np.float64) == pytest.approx(case["patches_mean"], abs=1e-6)


def test_patches_of_one_token_stand_together() -> None:
    grid = np.arange(4 * 6, dtype=np.uint8).reshape(4, 6)
    rgb = np.repeat(np.repeat(grid, 14, axis=0), 14, axis=1)[:, :, None].repeat(3, axis=2)

    order = order_patches(rgb)[:, 0].tolist()

    assert order == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, 12, 13, 18, 19, 14, 15, 20, 21, 16, 17, 22, 23]


def test_a_row_of_patches_is_channel_then_y_then_x() -> None:
    rgb = np.random.default_rng(1).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    assert np.array_equal(order_patches(rgb)[1].reshape(3, 14, 14), rgb[:14, 14:].transpose(2, 0, 1))


def test_patches_need_whole_tokens() -> None:
    with pytest.raises(ValueError, match="multiples of 28"):
        order_patches(np.zeros((28, 42, 3), dtype=np.uint8))


@pytest.mark.parametrize("name", ["grey16.png", "cmyk.jpg", "exif6.jpg"])
def test_media_files_come_out_upright_in_their_true_colours(name: str) -> None:
    truth = MEDIA_FILES[name]["truth"]
    rgb = upright_rgb((goldens.FOLDER / "files" / name).read_bytes())
    height, width = rgb.shape[:2]

    assert (height, width) == (truth["upright_h"], truth["upright_w"])
    for spot in truth.get("spots", []):
        wanted = spot.get("rgb", [spot.get("grey8")] * 3)
        np.testing.assert_allclose(rgb[spot["y"], spot["x"]].astype(int), wanted, atol=1)
    for place, wanted in truth.get("quadrants", {}).items():
        y = height // 4 if "top" in place else 3 * height // 4
        x = width // 4 if "left" in place else 3 * width // 4
        np.testing.assert_allclose(rgb[y, x].astype(int), wanted, atol=3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_is_undone(orientation: int) -> None:
    corners = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], dtype=np.uint8)
    upright = Image.fromarray(corners).resize((64, 32), Image.Resampling.NEAREST)
    turn = Image.Transpose
    stored_by = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_90,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_270,
    }
    stored = upright.transpose(stored_by[orientation]) if orientation in stored_by else upright
    exif = Image.Exif()
    exif[0x0112] = orientation

    assert np.array_equal(upright_rgb(encoded(stored, exif=exif)), np.asarray(upright))


def gradient16() -> NDArray[np.uint16]:
    return np.linspace(0, 65535, 64).astype(np.uint16)[None].repeat(48, axis=0)


def test_a_turned_16_bit_gradient_stays_a_gradient() -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    rgb = upright_rgb(encoded(Image.fromarray(gradient16()), exif=exif))
    assert np.array_equal(rgb[:, :, 0], (gradient16() >> 8)[:, ::-1])


def test_16_bit_grey_of_other_files_stays_a_gradient() -> None:
    portable_grey_map = b"P5 64 48 65535\n" + gradient16().astype(">u2").tobytes()
    for data in (portable_grey_map, encoded(Image.fromarray(gradient16()), "TIFF")):
        assert np.array_equal(upright_rgb(data)[:, :, 1], gradient16() >> 8)


def test_a_clear_value_of_16_bit_grey_is_laid_on_white() -> None:
    image = Image.fromarray(gradient16())
    assert upright_rgb(encoded(image, transparency=0))[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_clear_parts_are_laid_on_white(mode: str) -> None:
    clear = Image.new("RGBA", (30, 30), (10, 20, 30, 0)).convert(mode)
    assert upright_rgb(clear)[15, 15].tolist() == [255, 255, 255]


@pytest.mark.parametrize("clear", [1, b"\xff\x00"], ids=["one entry", "alpha of each"])
def test_a_clear_entry_of_a_palette_is_laid_on_white(clear: int | bytes) -> None:
    image = Image.new("P", (30, 30), 0)
    image.putpalette([10, 20, 30, 200, 30, 30])
    image.paste(1, (15, 0, 30, 30))
    rgb = upright_rgb(encoded(image, transparency=clear))
    assert (rgb[0, 0].tolist(), rgb[15, 20].tolist()) == ([10, 20, 30], [255, 255, 255])


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_clear_value_of_grey_in_few_bits_is_laid_on_white(bits: int) -> None:
    """Of 32 pixels each value in turn; the value 1 is clear."""
    most = 2**bits - 1
    values = np.arange(32) % 2**bits
    row = b"\0" + np.packbits((values[:, None] >> np.arange(bits)[::-1]) & 1).tobytes()
    data = png(32, 30, bits, 0, row * 30, (b"tRNS", struct.pack(">H", 1)))
    assert np.array_equal(upright_rgb(data)[0, :, 2], np.where(values == 1, 255, values * 255 // most))


def test_a_clear_value_of_16_bit_colour_is_laid_on_white() -> None:
    row = b"\0" + np.array([[0x1234, 0x5678, 0x9ABC], [0x1234, 0x5678, 0x0ABC]] * 15).astype(">u2").tobytes()
    data = png(30, 30, 16, 2, row * 30, (b"tRNS", struct.pack(">HHH", 0x1234, 0x5678, 0x9ABC)))
    assert upright_rgb(data)[0, :2].tolist() == [[255, 255, 255], [0x12, 0x56, 0x0A]]


def test_only_the_first_frame_of_an_animation_is_seen() -> None:
    frames = [Image.new("RGB", (30, 30), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with Image.open(io.BytesIO(data)) as animation:
        animation.seek(1)
        assert upright_rgb(animation)[0, 0].tolist() == upright_rgb(data)[0, 0].tolist() == [255, 0, 0]


def test_one_bit_pictures_are_black_and_white() -> None:
    image = Image.new("1", (30, 30), 1)
    image.putpixel((0, 0), 0)
    assert upright_rgb(encoded(image))[0, :2].tolist() == [[0, 0, 0], [255, 255, 255]]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"%PDF-1.4",
        encoded(Image.new("RGB", (200, 200), "red"))[:80],
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
    ids=["empty", "pdf", "cut off", "eps"],
)
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be decoded"):
        upright_rgb(data)


def test_settings_nested_for_other_servers_win_over_the_top_level() -> None:
    top = {"min_pixels": 1, "max_pixels": 2, "image_mean": MEAN, "image_std": STD}
    limits = ImageLimits.from_preprocessor({**top, "vision_config": {"min_pixels": 3136, "max_pixels": 1016064}})
    assert limits == LIMITS


@pytest.mark.parametrize("damage", [{"max_pixels": None}, {"temporal_patch_size": 2}, {"image_mean": [0.5]}])
def test_a_preprocessor_file_that_cannot_be_followed_is_refused(damage: dict[str, Any]) -> None:
    keys = {"min_pixels": 1, "max_pixels": 2, "image_mean": MEAN, "image_std": STD, **damage}
    with pytest.raises(ValueError, match=next(iter(damage))):
        ImageLimits.from_preprocessor({name: value for name, value in keys.items() if value is not None})


def test_a_negative_override_is_refused() -> None:
    with pytest.raises(ValueError, match="target_width must be at least 0, got -1"):
        SizeOverrides(target_width=-1)


def png(width: int, height: int, bits: int, colour: int, rows: bytes, *further: tuple[bytes, bytes]) -> bytes:
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)),
        *further,
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


@pytest.mark.parametrize("side", [65535, 2**31 - 1])
def test_a_small_file_of_a_huge_picture_is_refused_by_its_header(side: int) -> None:
    with pytest.raises(ValueError, match=rf"^a picture may have 89478485 pixels at most, got {side**2}$"):
        upright_rgb(png(side, side, 8, 6, bytes(3000)))


def test_a_picture_beyond_the_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="899 pixels at most, got 30 x 30"):
        upright_rgb(encoded(Image.new("RGB", (30, 30))), FileLimits(picture_pixels=899))


def test_a_colour_profile_changes_no_value() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    image = Image.new("RGB", (30, 30), (200, 30, 30))
    assert upright_rgb(encoded(image, icc_profile=profile))[0, 0].tolist() == [200, 30, 30]


def test_16_bits_of_colour_stay_a_gradient() -> None:
    levels = np.arange(64) * 1000
    row = b"\0" + np.stack([levels, levels[::-1], levels], axis=1).astype(">u2").tobytes()
    rgb = upright_rgb(png(64, 30, 16, 2, row * 30))
    assert np.array_equal(rgb[0, :, 0], levels >> 8)
