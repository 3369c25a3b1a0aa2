"""Which rank a request runs on where each has a cache of its own: few tokens held, prefixes where they are, room."""

from __future__ import annotations

from engine.wire.messages import Sampling
from tests.support.fake_steps import Run, small_plan

LONG = Sampling(max_tokens=40)


def run_of(homes: int, num_slabs: int = 40) -> Run:
    return Run(small_plan(num_slabs, homes=homes, max_num_batched_tokens=64))


def placed(run: Run) -> dict[str, int]:
    """Who is in the next step, and where."""
    run.step()
    return {item.request.request_id: item.home for item in run.batches[-1].items}


def test_requests_go_where_the_fewest_tokens_are() -> None:
    run = run_of(3)
    for name, length in {"a": 20, "b": 9, "c": 5, "d": 3, "e": 4}.items():
        run.submit(name, [ord(name) % 50] * length)
    assert placed(run) == {"a": 0, "b": 1, "c": 2, "d": 2, "e": 2}


def test_a_prompt_goes_back_to_its_prefix_unless_that_rank_holds_much_more() -> None:
    """16 tokens are found again, which are worth 128 held ones."""
    run = run_of(2, num_slabs=200)
    first = list(range(17))
    run.submit("first", first, max_tokens=1)
    run.until_idle()
    assert run.batches[0].items[0].home == 0
    for number in range(3):
        run.submit(f"again {number}", [*first, 30 + number, *[40] * 30], sampling=LONG)
        assert placed(run)[f"again {number}"] == 0
    run.submit(
        "again 3", [*first, 33, *[40] * 30], sampling=LONG
    )  # 3 · 48 tokens are held there by now, and none on the other rank
    assert placed(run)["again 3"] == 1
    assert run.scheduler.figures().prefix_hits == 3 * 16
    run.until_idle()


def test_a_rank_without_room_is_passed_over() -> None:
    run = run_of(2, num_slabs=9)
    first = list(range(17))
    run.submit("first", first, max_tokens=1)
    run.until_idle()
    found = []
    for number in range(4):
        run.submit(f"again {number}", [*first, 30 + number, *[40] * 24], sampling=Sampling(max_tokens=9))
        found.append(placed(run)[f"again {number}"])
    assert found == [0, 0, 1, 1]
    run.until_idle()
    for name in run.finished:
        run.check_answer(name)


def test_a_preempted_request_may_go_on_elsewhere() -> None:
    """Two that grow on one rank, until there is no more room for both; the other rank has become idle meanwhile."""
    run = run_of(2, num_slabs=5)
    run.submit("short", [5] * 16, sampling=Sampling(max_tokens=3))
    run.submit("one", [1] * 8, sampling=LONG)
    run.submit("two", [2] * 8, sampling=LONG)
    assert placed(run) == {"short": 0, "one": 1, "two": 1}
    run.until_idle()
    homes = [item.home for batch in run.batches for item in batch.items if item.request.request_id == "two"]
    assert run.scheduler.figures().preemptions == 1
    assert (homes[0], homes[-1]) == (1, 0)
    for name in run.finished:
        run.check_answer(name)


def test_usage_is_that_of_all_budgets() -> None:
    one, two = run_of(1), run_of(2)
    for run in (one, two):
        run.submit("r", [1] * 20)
        run.step()
    assert two.scheduler.figures().cache_usage["dsa"] == one.scheduler.figures().cache_usage["dsa"] / 2 > 0
