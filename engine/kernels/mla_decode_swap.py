"""Scores that two programs of `engine.kernels.mla_decode_hopper` swap through memory, as each has half of a product.

A program's messages lie in a ring. Each number of a message carries the message's turn in its lowest four bits, so that
a look at the numbers themselves tells whether they have come: no flag, no fence, no other thread to agree with.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_HEADS, _ROWS = 64, 32  # of a block
_EACH = 16  # numbers of a message that a thread has: in each of two rows, eight apart, two of every eight

# Messages of a program that lie in memory at a time. Who sends block n has the neighbour's n − 3, before which that one
# had this one's n − 6: so 6 would do. The one that is written over has another mark, as it is 8 turns old.
SWAPS = gl.constexpr(8)
MESSAGE = gl.constexpr(_HEADS * _ROWS)  # numbers
MESSAGES = gl.constexpr(SWAPS.value * MESSAGE.value)

assert _EACH * 128 == MESSAGE.value  # of four warps
_FIRST = gl.constexpr(~(1 | _ROWS - 8 | 8 * _ROWS))  # what a thread's places have in common with its first
_LOOK = "".join(
    f"ld.volatile.global.v2.b32 {{${2 * i}, ${2 * i + 1}}}, [$32 + {4 * (i // 2 * 8 + i % 2 * 8 * _ROWS)}];"
    for i in range(_EACH // 2)
)
_COMPARE = "".join(f"xor.b32 one, ${i}, $48; or.b32 all, all, one;" for i in range(_EACH))
_WAIT = gl.constexpr(
    "{.reg .pred missing; .reg .b32 all, one; bra.uni compare;"
    f"look: {_LOOK}"
    f"compare: mov.b32 all, 0; {_COMPARE} and.b32 all, all, 15; setp.ne.b32 missing, all, 0;"
    "vote.sync.any.pred missing, missing, 0xffffffff; @missing bra.uni look;}"
)
# Sixteen numbers, which come in and go out in the same registers; the first one's address and the mark, for each again.
_OPERANDS = gl.constexpr(",".join(["=&r"] * _EACH + [str(i) for i in range(_EACH)] + ["l"] * _EACH + ["r"] * _EACH))


@gluon.jit
def send(scores, own, pair, turn):
    bits = scores.to(gl.int32, bitcast=True)
    gl.store(own + turn % SWAPS * MESSAGE + pair, (bits & -16) | (turn & 15))


@gluon.jit
def look(theirs, pair, turn):
    """→ What lies where the neighbour's message comes to."""
    return gl.load(theirs + turn % SWAPS * MESSAGE + pair, volatile=True)


@gluon.jit
def received(message, theirs, pair, turn):
    """→ The neighbour's part of a block's scores; `message`: what was there at the last look."""
    message = await_message(message, theirs + turn % SWAPS * MESSAGE, pair, turn)
    return (message & -16).to(gl.float32, bitcast=True)


@gluon.jit
def await_message(message, theirs, pair, turn):
    """Looks again until all numbers have the turn's mark: each warp for itself, where a loop of the language would have
    all warps agree, in every turn of it."""
    first = (theirs + (pair & _FIRST)).to(gl.int64)
    mark = pair * 0 + turn
    return gl.inline_asm_elementwise(_WAIT, _OPERANDS, [message, first, mark], dtype=gl.int32, is_pure=False, pack=16)
