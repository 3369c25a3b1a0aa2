"""How large a media file's content may be. Checked against what the header tells before anything is decoded, and again
while decoding, since headers lie. Knows no formats, and no size of the file itself: whoever fetches it counts bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileLimits:
    picture_pixels: int = 89_478_485  # Pillow's own limit, above which it warns
    frame_pixels: int = 40_000_000  # of a film: somewhat more than 8K
    film_frames: int = 1_000_000
    duration_s: float = 4 * 3600.0

    def check_picture(self, width: int, height: int) -> None:
        if width * height > self.picture_pixels:
            raise ValueError(f"a picture may have {self.picture_pixels} pixels at most, got {width} x {height} (w x h)")

    def check_frame(self, width: int, height: int) -> None:
        if width * height > self.frame_pixels:
            raise ValueError(
                f"a film's frames may have {self.frame_pixels} pixels at most, got {width} x {height} (w x h)"
            )

    def check_frame_count(self, count: int) -> None:
        if count > self.film_frames:
            raise ValueError(f"a film may have {self.film_frames} frames at most, got {count}")

    def check_duration(self, seconds: float, kind: str) -> None:
        if seconds > self.duration_s:
            raise ValueError(f"a {kind} may last {self.duration_s:g} seconds at most, got {seconds:.0f}")


DEFAULT_LIMITS = FileLimits()
