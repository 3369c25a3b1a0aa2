"""A request that waits for its grammar: in the scheduler and in the worker's loop, with a model without weights."""

from collections.abc import Callable

import pytest

from engine.config.engine import EngineConfig
from engine.grammar.matcher import Matcher
from engine.runtime.loop import Loop, StepResult
from engine.runtime.mailroom import Compiled, Left, Stopping
from engine.runtime.progress import Progress
from engine.sched.batch import ScheduledBatch
from engine.sched.scheduler import Scheduler
from engine.wire.grammar import Grammar, JsonObject
from engine.wire.messages import Abort, Failed, Finished, Submit, Tokens
from tests.engine.test_worker_loop import A, B, FakePost, FakeRunner, submit
from tests.support.fake_steps import VOCAB, Run, small_plan
from tests.support.grammar_walk import compiled

PLAN = small_plan(20)
GRAMMAR = Grammar(JsonObject())


def matchers(count: int = 1) -> tuple[Matcher, ...]:
    """Of a grammar that allows all that the model without weights says."""
    anything = compiled({"type": "Regex", "pattern": "(?s:.*)"})
    return tuple(anything.matcher("now", (7,)) for _ in range(count))


def hold(run: Run, request_id: str, **fields: object) -> Submit:
    request = submit(request_id, (1, 2), 8, grammar=GRAMMAR, **fields)
    run.scheduler.submit(request)
    run.submits[request_id] = request
    return request


# ---- the scheduler


def test_it_waits_without_a_place_in_the_batch() -> None:
    run = Run(small_plan(20, max_num_seqs=1))
    held = hold(run, "held")
    run.submit("free", [3, 4])
    run.until_idle()
    run.check_answer("free")
    assert not run.scheduler.has_work
    assert run.scheduler.figures()[:2] == (0, 1)
    run.scheduler.start(held, matchers())
    run.until_idle()
    run.check_answer("held")


def test_each_choice_has_a_matcher_that_saw_its_whole_answer() -> None:
    run = Run(PLAN)
    given = matchers(3)
    run.scheduler.start(hold(run, "a", n=3), given)
    run.until_idle()
    run.check_answer("a")
    for index, matcher in enumerate(given):
        num_seen = len([token for token in run.answers["a", index] if token != 7])
        matcher.rollback(num_seen)
        with pytest.raises(ValueError, match="at most 0"):
            matcher.rollback(1)


@pytest.mark.parametrize("late", [False, True])
def test_its_end_while_it_waits_is_final(late: bool) -> None:
    run = Run(PLAN)
    held = hold(run, "a", deadline_s=2.0)
    if late:
        run.now += 3.0
        [finished] = run.scheduler.expire()
        run.take(finished)
    else:
        run.take(run.scheduler.abort("a"))
    assert run.finished["a"].aborted
    assert run.finished["a"].completion_tokens == 0
    run.scheduler.start(held, matchers())
    assert not run.scheduler.has_work
    run.scheduler.check_integrity()


def test_a_grammar_that_comes_late_is_not_taken_for_the_next_request_of_that_id() -> None:
    run = Run(PLAN)
    first = hold(run, "a")
    run.scheduler.abort("a")
    second = hold(run, "a")
    run.scheduler.start(first, matchers())
    assert not run.scheduler.has_work
    run.scheduler.start(second, matchers())
    run.until_idle()
    run.check_answer("a")


def test_a_choice_that_is_stopped_while_it_waits_lets_no_other_begin_without_its_grammar() -> None:
    run = Run(PLAN)
    held = hold(run, "a", n=2)
    run.take(run.scheduler.stop("a", 0, 0))
    assert not run.scheduler.has_work
    run.scheduler.start(held, matchers(2))
    run.until_idle()
    assert run.finished["a"].completion_tokens == len(run.answers["a", 1]) > 0


def test_an_answer_ends_with_the_token_that_completes_its_grammar() -> None:
    run = Run(PLAN)
    run.submit("free", [1, 2])
    run.until_idle()
    said = "".join(map(chr, (33 + token for token in run.answers["free", 0])))  # ids 0 to 49 are ! to R
    exact = compiled({"type": "Choice", "choices": [said[:3]]}).matcher("now", (7,))
    run.scheduler.start(hold(run, "held"), (exact,))
    run.until_idle()
    assert run.answers["held", 0] == run.answers["free", 0][:3]
    assert run.reasons["held", 0] == "stop"


# ---- the loop


class FakeCompiler:
    """Keeps what it was asked for; each test answers when it likes."""

    def __init__(self) -> None:
        self.asked: list[tuple[Submit, Callable[[Compiled], None]]] = []
        self.closed = False

    def compile(self, submit: Submit, done: Callable[[Compiled], None]) -> None:
        self.asked.append((submit, done))

    def close(self) -> None:
        self.closed = True


def test_a_refusal_is_the_only_message_and_comes_while_others_run() -> None:
    compiler, post = FakeCompiler(), FakePost(2)
    runner = FakeRunner({2: lambda: compiler.asked[0][1](Compiled(compiler.asked[0][0], (), "too deep"))})
    post.send(A, submit("held", grammar=GRAMMAR))
    post.send(B, submit("free"))
    assert Loop(Scheduler(EngineConfig(), PLAN), runner, VOCAB, Progress(), compiler).run(post)
    assert post.to(A, "held") == [Failed("held", "invalid_value", "the grammar cannot be used: too deep")]
    assert isinstance(post.to(B, "free")[-1], Finished)
    assert compiler.closed


def test_the_loop_sleeps_until_the_grammar_is_there() -> None:
    compiler, post = FakeCompiler(), FakePost(1)
    loop = Loop(Scheduler(EngineConfig(), PLAN), FakeRunner(), VOCAB, Progress(), compiler)
    request = submit("held", grammar=GRAMMAR)
    post.send(A, request)
    post.inbox.put(Compiled(request, matchers()))
    assert loop.run(post)
    assert isinstance(post.to(A, "held")[0], Tokens)
    assert isinstance(post.to(A, "held")[-1], Finished)


def test_of_requests_that_are_gone_no_answer_goes_out() -> None:
    compiler, post = FakeCompiler(), FakePost(None)
    loop = Loop(Scheduler(EngineConfig(), PLAN), FakeRunner(), VOCAB, Progress(), compiler)
    first, second = submit("aborted", grammar=GRAMMAR), submit("left", grammar=GRAMMAR)
    post.send(A, first, Abort("aborted"))
    post.send(B, second)
    post.inbox.put(Left(B))
    post.inbox.put(Compiled(first, (), "no"))
    post.inbox.put(Compiled(second, matchers()))
    post.inbox.put(Stopping())
    assert loop.run(post)
    assert [type(message) for message in post.to(A, "aborted")] == [Finished]
    assert post.to(B, "left") == []


def test_an_answer_that_no_token_can_follow_fails_and_the_others_go_on() -> None:
    post = FakePost(2)

    class Stuck(FakeRunner):
        def run(self, batch: ScheduledBatch) -> StepResult:
            result = super().run(batch)
            stuck = [one for one in result.tokens if one.request_id == "stuck" and self.steps > 2]
            return result._replace(stuck=dict.fromkeys(stuck, "no token is left"))

    post.send(A, submit("stuck", n=2), submit("free"))
    assert Loop(Scheduler(EngineConfig(), PLAN), Stuck(), VOCAB, Progress()).run(post)
    *tokens, end = post.to(A, "stuck")
    assert tokens
    assert end == Failed("stuck", "invalid_value", "no token is left")
    assert isinstance(post.to(A, "free")[-1], Finished)


def test_a_worker_without_grammars_refuses_them() -> None:
    post = FakePost(1)
    post.send(A, submit("held", grammar=GRAMMAR))
    assert Loop(Scheduler(EngineConfig(), PLAN), FakeRunner(), VOCAB, Progress()).run(post)
    assert post.to(A, "held") == [Failed("held", "unsupported_value", "this worker holds no answer to a grammar")]
