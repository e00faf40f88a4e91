"""The judge of chaos runs finds what must not happen, and excuses only what it may."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.history import Evidence, Verdict, judge


LEASE = 3000.0
KEY = ("q", "a")


class Story:
    """One job's life, as everybody noted it; times are milliseconds."""

    def __init__(self, most: int = 3) -> None:
        self.notes: list[dict[str, Any]] = []
        self.faults: list[dict[str, Any]] = []
        self.jobs: dict[tuple[str, str], dict[str, Any]] = {}
        self.dead: dict[tuple[str, str], dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.note("offer", 0, most=most, kind="quick")
        self.note("accept", 1)

    def note(self, event: str, time: float, **facts: Any) -> None:
        """Add a line."""
        self.notes.append({"e": event, "t": time, "q": "q", "j": "a", **facts})

    def start(self, token: int, time: float, *, attempt: int = 1, worker: str = "w") -> None:
        """Start an attempt, with a whole run."""
        run = f"r{token}"
        self.note("start", time, k=token, c=time - 1, a=attempt, r=run, w=worker)
        self.runs[run] = {"id": run, "status": "failed", "jobId": "a", "error": "lease lapsed"}

    def settle(self, token: int, time: float, how: str, ok: str = "yes", **facts: Any) -> None:
        """Settle an attempt; its run says the same."""
        self.note("end", time, k=token, how=how)
        self.note("settle", time + 2, k=token, how=how, ok=ok, c=time, **facts)
        if ok == "yes":
            status = {"complete": "completed", "fail": "failed", "release": "cancelled"}[how]
            self.runs[f"r{token}"]["status"] = status

    def completed(self, token: int) -> None:
        """Let the store say that it was completed."""
        output = {"token": token}
        self.jobs[KEY] = {"status": "completed", "leaseToken": token, "returnValue": output}

    def died(self, time: float, worker: str = "w") -> None:
        """Let a worker be killed."""
        self.faults.append({"e": "died", "t": time, "w": worker, "code": -9})

    def judged(self) -> Verdict:
        """Judge it."""
        return judge(Evidence(self.notes, self.faults, self.jobs, self.dead, self.runs, LEASE))


def done(token: int = 1) -> Story:
    """Tell of a job that was simply done."""
    story = Story()
    story.start(token, 10)
    story.settle(token, 20, "complete")
    story.completed(token)
    return story


def test_a_job_that_was_done_is_legal() -> None:
    """Nothing is found where nothing is wrong."""
    verdict = done().judged()

    assert [] == verdict.violations
    assert (1, 1, 0) == tuple(verdict.counts[n] for n in ("accepted", "completed", "doubled"))


def test_a_lost_job_is_found() -> None:
    """It was acknowledged, and is nowhere."""
    story = done()
    story.jobs.clear()

    assert ["('q', 'a'): was acknowledged, and is lost"] == story.judged().violations


def test_an_unacknowledged_job_may_be_missing() -> None:
    """Nobody was told that it is there."""
    story = Story()
    del story.notes[1]

    assert [] == story.judged().violations


def test_a_job_that_is_alive_and_dead_is_found() -> None:
    """It must be one of the two."""
    story = done()
    story.dead[KEY] = {"reason": "attempts exhausted", "attemptMade": 3, "maxAttempts": 3}

    assert any("alive and dead" in line for line in story.judged().violations)


def test_a_job_that_has_not_ended_is_found() -> None:
    """After the drain nothing waits."""
    story = done()
    story.jobs[KEY]["status"] = "active"

    assert any("not ended, but is active" in line for line in story.judged().violations)


def test_a_second_start_under_a_good_lease_is_found() -> None:
    """Neither a lapse nor a loss explains it."""
    story = Story()
    story.start(1, 10)
    story.start(2, 2000, attempt=2)
    story.settle(2, 2100, "complete")
    story.completed(2)

    verdict = story.judged()
    assert 1 == verdict.counts["doubled: unexplained"]
    assert any("could lapse" in line for line in verdict.violations)


def test_a_renewal_makes_the_lease_longer() -> None:
    """What was good until 3009 is good until 5500."""
    story = Story()
    story.start(1, 10)
    story.note("renew", 2600, k=1, c=2500)
    story.start(2, 4000, attempt=2)
    story.settle(2, 4100, "complete")
    story.completed(2)

    assert 1 == story.judged().counts["doubled: unexplained"]


@pytest.mark.parametrize("how", ["lapse", "loss", "answer", "killed after the end"])
def test_a_second_start_with_a_reason_is_excused(how: str) -> None:
    """The lease lapsed, or the hot plane was lost, or a failure was really written."""
    story = Story()
    story.start(1, 10)
    if how == "loss":
        story.faults.append({"e": "flush redis", "since": 500, "t": 510, "lost": True})
    elif how == "answer":
        story.settle(1, 100, "fail", ok="unknown")
    elif how == "killed after the end":
        story.note("end", 100, k=1, how="fail")
        story.died(101)
    story.start(2, 3009.0 if how == "lapse" else 1000, attempt=2)
    story.settle(2, 5000, "complete")
    story.completed(2)

    verdict = story.judged()
    assert [] == verdict.violations
    assert 1 == verdict.counts["doubled"]


def test_a_loss_at_another_time_excuses_nothing() -> None:
    """It must lie between the two starts."""
    story = Story()
    story.faults.append({"e": "flush redis", "since": 1, "t": 2, "lost": True})
    story.start(1, 10)
    story.start(2, 1000, attempt=2)
    story.settle(2, 1100, "complete")
    story.completed(2)

    assert 1 == story.judged().counts["doubled: unexplained"]


def test_a_start_after_an_acknowledged_end_is_found() -> None:
    """However late it comes."""
    story = done()
    story.start(2, 90_000, attempt=2)
    story.settle(2, 90_010, "complete")
    story.completed(2)

    violations = story.judged().violations
    assert any("acknowledged as done" in line for line in violations)
    assert any("ended 2 times" in line for line in violations)
    assert any("more than one completed run" in line for line in violations)


def test_a_stale_writer_that_was_not_refused_is_found() -> None:
    """Its lease was taken over before it asked."""
    story = Story()
    story.start(1, 10)
    story.start(2, 4000, attempt=2)
    story.settle(1, 4500, "fail")
    story.settle(2, 5000, "complete")
    story.completed(2)

    assert any("stale writer" in line for line in story.judged().violations)


def test_a_stale_writer_that_was_refused_is_counted() -> None:
    """That is the proof that tokens work."""
    story = Story()
    story.start(1, 10)
    story.start(2, 4000, attempt=2)
    story.settle(1, 4500, "complete", ok="refused")
    story.settle(2, 5000, "complete")
    story.completed(2)

    verdict = story.judged()
    assert [] == verdict.violations
    assert 1 == verdict.counts["stale writers refused"]


def test_a_token_that_was_handed_out_twice_is_found() -> None:
    """Tokens grow."""
    story = done()
    story.start(1, 4000, attempt=2)

    assert any("token was handed out twice" in line for line in story.judged().violations)


def test_more_starts_than_attempts_are_found() -> None:
    """One means at most once; what was given back does not count."""
    story = Story(most=1)
    story.start(1, 10)
    story.settle(1, 15, "release")
    story.start(2, 20)
    story.settle(2, 30, "complete")
    story.completed(2)
    assert [] == story.judged().violations

    story = Story(most=1)
    story.start(1, 10)
    story.start(2, 4000, attempt=2)
    story.settle(2, 4030, "complete")
    story.completed(2)
    assert any("was run 2 times, 1 are allowed" in v for v in story.judged().violations)


def test_an_output_of_another_attempt_is_found() -> None:
    """What is stored belongs to the token that completed it."""
    story = done()
    story.jobs[KEY]["returnValue"] = {"token": 7}

    assert any("output of another attempt" in line for line in story.judged().violations)


def test_a_dead_letter_with_attempts_left_is_found() -> None:
    """Unless somebody said so, every attempt is made."""
    story = Story()
    story.start(1, 10)
    story.settle(1, 20, "fail", dead=True)
    story.dead[KEY] = {"reason": "attempts exhausted", "attemptMade": 1, "maxAttempts": 3}

    assert ["('q', 'a'): died with attempts left"] == story.judged().violations


def test_a_lost_run_needs_a_death() -> None:
    """Killed soon after the end is a reason; alive, or killed much later, is none."""
    story = done()
    story.runs.clear()
    assert 1 == story.judged().counts["runs: lost without a reason"]

    story.died(60_000)
    assert 1 == story.judged().counts["runs: lost without a reason"]

    story.faults[0]["t"] = 1000
    verdict = story.judged()
    assert ([], 1) == (verdict.violations, verdict.counts["runs: lost to a kill"])


def test_a_run_that_was_never_closed_is_found() -> None:
    """Maintenance closes what a crash left open."""
    story = done()
    story.runs["r1"]["status"] = "running"

    assert any("never closed" in line for line in story.judged().violations)


def test_a_run_that_closing_reported_is_explained() -> None:
    """Each of those it could not write, and no more."""
    story = done()
    story.runs.clear()
    story.notes.append({"e": "bye", "t": 100, "w": "w", "unwritten": 0})
    assert 1 == story.judged().counts["runs: lost without a reason"]

    story.notes[-1]["unwritten"] = 1
    verdict = story.judged()
    assert ([], 1) == (verdict.violations, verdict.counts["runs: unwritten at closing"])


def test_a_silent_worker_may_be_taken_for_lost() -> None:
    """Only while it was stopped; its job is done all the same."""
    story = done()
    story.runs["r1"] |= {"status": "failed", "error": "worker lost"}
    assert 1 == story.judged().counts["runs: lost without a reason"]

    story.faults.append({"e": "stop worker", "w": "w", "since": 15, "t": 6000})
    verdict = story.judged()
    assert ([], 1) == (verdict.violations, verdict.counts["runs: closed in a silence"])
