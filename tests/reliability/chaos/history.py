"""
Judges a chaos run: pure, over what everybody noted and what the store says.

Per job, claims and settles must form a legal history: fencing tokens grow, no
attempt starts while the lease before it is surely good, a stale writer is
refused, there is one end and it is the one that was acknowledged.
"""

from __future__ import annotations

import itertools

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs


__all__ = ["Evidence", "Verdict", "judge"]

Event: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[str, str]

_ROUNDING: Final = 3.0
"""Milliseconds by which two readings of one clock may differ."""
_BUFFER: Final = 6000.0
"""For how long a finished run may wait to be written, in milliseconds of uptime."""
_ENDED: Final = frozenset({"completed", "cancelled"})


@attrs.define
class Evidence:
    """
    What is compared.

    Attributes:
        notes: Every line of producers and workers.
        faults: Every line of the nemesis and the crew.
        jobs: Records of jobs by queue and id.
        dead: Records of dead letters by queue and id.
        runs: Records of runs by id.
        lease: The lease of every claim, in milliseconds.
    """

    notes: Sequence[Event]
    faults: Sequence[Event]
    jobs: Mapping[Key, Event]
    dead: Mapping[Key, Event]
    runs: Mapping[str, Event]
    lease: float


@attrs.define
class Verdict:
    """
    What came out.

    Attributes:
        violations: What must not have happened; empty where all is well.
        counts: Jobs, doubles and runs by what became of them.
        taken_over: For every attempt that a crash cut off, the milliseconds from
            the crash until the next attempt started.
    """

    violations: list[str] = attrs.Factory(list)
    counts: Counter[str] = attrs.Factory(Counter)
    taken_over: list[float] = attrs.Factory(list)


@attrs.define
class _Attempt:
    """One start of a handler, and what followed."""

    start: Event
    good_until: float
    settle: Event | None = None
    how: str = ""
    """How the handler ended, and so what was tried to be written then."""

    @property
    def ok(self) -> str:
        return "nothing" if self.settle is None else self.settle["ok"]


@attrs.define
class _Book:
    """The notes, sorted by job."""

    offers: dict[Key, Event] = attrs.Factory(dict)
    accepted: set[Key] = attrs.Factory(set)
    attempts: dict[Key, dict[int, _Attempt]] = attrs.Factory(lambda: defaultdict(dict))
    twice: list[Key] = attrs.Factory(list)


def judge(evidence: Evidence) -> Verdict:
    """Compare everything with everything."""
    verdict = Verdict()
    book = _sorted_book(evidence)
    verdict.violations += [f"{key}: one token was handed out twice" for key in book.twice]
    losses = [(f["since"], f["t"]) for f in evidence.faults if f.get("lost")]
    deaths = {f["w"]: f["t"] for f in evidence.faults if f["e"] == "died" and f["code"] < 0}
    for key, by_token in book.attempts.items():
        attempts = [by_token[token] for token in sorted(by_token)]
        _judge_history(verdict, key, attempts, losses, deaths)
        _judge_attempts(verdict, key, attempts, book)
    _judge_ends(verdict, evidence, book)
    _judge_runs(verdict, evidence, book, deaths)
    return verdict


def _sorted_book(evidence: Evidence) -> _Book:
    book = _Book()
    for note in evidence.notes:
        if "j" not in note:
            continue
        key = (note["q"], note["j"])
        match note["e"]:
            case "offer":
                book.offers[key] = note
            case "accept":
                book.accepted.add(key)
            case "start":
                if note["k"] in book.attempts[key]:
                    book.twice.append(key)
                book.attempts[key][note["k"]] = _Attempt(note, note["c"] + evidence.lease)
            case "renew":
                attempt = book.attempts[key][note["k"]]
                attempt.good_until = max(attempt.good_until, note["c"] + evidence.lease)
            case "end":
                book.attempts[key][note["k"]].how = note["how"]
            case "settle":
                book.attempts[key][note["k"]].settle = note
    return book


# --- the history of one job ---


def _judge_history(
    verdict: Verdict,
    key: Key,
    attempts: Sequence[_Attempt],
    losses: Iterable[tuple[float, float]],
    deaths: Mapping[str, float],
) -> None:
    for before, after in itertools.pairwise(attempts):
        started = after.start["t"]
        if before.how == "complete" and before.ok == "yes":
            verdict.violations.append(f"{key}: started again after it was acknowledged as done")
        elif before.how in {"fail", "release"} and before.ok == "yes":
            if before.settle is not None and started < before.settle["c"] - _ROUNDING:
                verdict.violations.append(f"{key}: a stale writer was not refused")
            verdict.counts["retried" if before.how == "fail" else "given back"] += 1
        else:
            verdict.counts["doubled"] += 1
            _judge_double(verdict, key, before, after, losses, deaths)
    _judge_acknowledged(verdict, key, attempts)


def _judge_double(
    verdict: Verdict,
    key: Key,
    before: _Attempt,
    after: _Attempt,
    losses: Iterable[tuple[float, float]],
    deaths: Mapping[str, float],
) -> None:
    started = after.start["t"]
    lost = any(before.start["c"] <= end and since <= started for since, end in losses)
    unsure = before.how in {"fail", "release"} and before.ok in {"unknown", "nothing"}
    if started >= before.good_until - _ROUNDING:
        verdict.counts["doubled: lease lapsed"] += 1
    elif lost:
        verdict.counts["doubled: hot plane lost"] += 1
    elif unsure:
        # The write was done, and its answer was lost: a retry like any other.
        verdict.counts["doubled: answer lost"] += 1
    else:
        verdict.counts["doubled: unexplained"] += 1
        early = before.good_until - started
        verdict.violations.append(
            f"{key}: token {after.start['k']} started {early:.0f} ms before the lease of "
            f"token {before.start['k']} could lapse"
        )
    died = deaths.get(before.start["w"])
    if died is not None and before.start["t"] <= died <= started and before.settle is None:
        verdict.taken_over.append(started - died)


def _judge_acknowledged(verdict: Verdict, key: Key, attempts: Sequence[_Attempt]) -> None:
    ends = [a for a in attempts if a.ok == "yes" and _is_end(a)]
    if len(ends) > 1:
        tokens = [a.start["k"] for a in ends]
        verdict.violations.append(f"{key}: ended {len(ends)} times, by tokens {tokens}")
    # Refused writers are the proof that fencing works; they are counted.
    verdict.counts["stale writers refused"] += sum(a.ok == "refused" for a in attempts)
    for index, attempt in enumerate(attempts):
        settle = attempt.settle
        if settle is None or attempt.ok != "yes":
            continue
        if any(later.start["t"] < settle["c"] - _ROUNDING for later in attempts[index + 1 :]):
            verdict.violations.append(f"{key}: a stale writer was not refused")


def _is_end(attempt: _Attempt) -> bool:
    settle = attempt.settle
    return settle is not None and (attempt.how == "complete" or bool(settle.get("dead")))


def _judge_attempts(verdict: Verdict, key: Key, attempts: Sequence[_Attempt], book: _Book) -> None:
    offer = book.offers.get(key)
    if offer is None:
        verdict.violations.append(f"{key}: was run, but nobody added it")
        return
    given_back = sum(a.how == "release" and a.ok != "refused" for a in attempts)
    if len(attempts) > offer["most"] + given_back:
        verdict.violations.append(
            f"{key}: was run {len(attempts)} times, {offer['most']} are allowed"
        )
    if offer["most"] == 1:
        verdict.counts["at most once: started"] += 1


# --- the ends ---


def _judge_ends(verdict: Verdict, evidence: Evidence, book: _Book) -> None:
    counts = verdict.counts
    counts["accepted"] = len(book.accepted)
    both = set(evidence.jobs) & set(evidence.dead)
    verdict.violations += [f"{key}: is alive and dead at once" for key in both]
    for key in book.accepted:
        if key not in evidence.jobs and key not in evidence.dead:
            counts["lost"] += 1
            verdict.violations.append(f"{key}: was acknowledged, and is lost")
    for key, job in evidence.jobs.items():
        counts[job["status"]] += 1
        if job["status"] not in _ENDED:
            verdict.violations.append(f"{key}: has not ended, but is {job['status']}")
        elif key not in book.offers:
            verdict.violations.append(f"{key}: nobody added it")
        else:
            _judge_completed(verdict, key, job, book.attempts.get(key, {}))
    for key, letter in evidence.dead.items():
        counts[f"dead: {str(letter['reason']).partition(' ×')[0]}"] += 1
        _judge_dead(verdict, key, letter, book.attempts.get(key, {}))


def _judge_completed(
    verdict: Verdict, key: Key, job: Event, by_token: Mapping[int, _Attempt]
) -> None:
    token = job["leaseToken"]
    attempt = by_token.get(token)
    if attempt is None:
        verdict.violations.append(f"{key}: was completed by token {token}, which nobody had")
        return
    if attempt.how not in {"", "complete"} or attempt.ok == "refused":
        verdict.violations.append(f"{key}: completed, but token {token} was {attempt.ok}")
    if job["returnValue"] != {"token": token}:
        verdict.violations.append(f"{key}: has the output of another attempt")
    if token != max(by_token):
        verdict.violations.append(f"{key}: completed by token {token}, not the largest")
    acknowledged = [a for a in by_token.values() if a.ok == "yes" and a.how == "complete"]
    if any(a.start["k"] != token for a in acknowledged):
        verdict.violations.append(f"{key}: another completion was acknowledged")


def _judge_dead(
    verdict: Verdict, key: Key, letter: Event, by_token: Mapping[int, _Attempt]
) -> None:
    if any(a.ok == "yes" and a.how == "complete" for a in by_token.values()):
        verdict.violations.append(f"{key}: is dead, but was acknowledged as done")
    if letter["attemptMade"] < letter["maxAttempts"]:
        verdict.violations.append(f"{key}: died with attempts left")


# --- the receipts ---


def _judge_runs(
    verdict: Verdict, evidence: Evidence, book: _Book, deaths: Mapping[str, float]
) -> None:
    outages = [
        (f["since"], f["t"]) for f in evidence.faults if "since" in f and "worker" not in f["e"]
    ]
    stops: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for fault in evidence.faults:
        if fault["e"] == "stop worker":
            stops[fault["w"]].append((fault["since"], fault["t"]))
    # What a worker could not write at its end, and said so.
    unwritten = {n["w"]: n.get("unwritten", 0) for n in evidence.notes if n["e"] == "bye"}
    done: Counter[str] = Counter()
    for key, by_token in book.attempts.items():
        for attempt in by_token.values():
            run = evidence.runs.get(attempt.start["r"])
            worker = attempt.start["w"]
            verdict.counts["runs"] += 1
            if run is not None and _was_silent(attempt, run, stops[worker]):
                verdict.counts["runs: closed in a silence"] += 1
            elif unwritten.get(worker, 0) > 0 and (run is None or _was_cut_off(attempt, run)):
                unwritten[worker] -= 1
                verdict.counts["runs: unwritten at closing"] += 1
            else:
                _judge_run(verdict, key, attempt, run, deaths.get(worker), outages)
            if run is not None and run["status"] == "completed":
                done[run["jobId"]] += 1
    twice = [job for job, times in done.items() if times > 1]
    verdict.violations += [f"{job}: has more than one completed run" for job in twice]


def _judge_run(
    verdict: Verdict,
    key: Key,
    attempt: _Attempt,
    run: Event | None,
    died: float | None,
    outages: Iterable[tuple[float, float]],
) -> None:
    counts = verdict.counts
    if run is not None and run["status"] in {"queued", "running"}:
        verdict.violations.append(f"{key}: its run {run['id']} was never closed")
    elif run is not None and not _was_cut_off(attempt, run):
        counts["runs: whole"] += 1
    elif died is not None and _in_buffer(attempt, died, outages):
        # The worker was killed before its buffer was written: all that a crash may cost.
        counts["runs: closed by maintenance" if run is not None else "runs: lost to a kill"] += 1
    elif run is not None and attempt.ok != "yes":
        counts["runs: closed by maintenance"] += 1
    else:
        counts["runs: lost without a reason"] += 1
        what = "is gone" if run is None else f"says {run['error']!r}"
        verdict.violations.append(f"{key}: the run of token {attempt.start['k']} {what}")


def _was_silent(attempt: _Attempt, run: Event, stops: Iterable[tuple[float, float]]) -> bool:
    """Whether its worker was stopped for so long that it was taken for lost."""
    settle = attempt.settle
    return (
        settle is not None
        and bool(run["error"] == "worker lost")
        and any(attempt.start["t"] < end and since < settle["t"] for since, end in stops)
    )


def _was_cut_off(attempt: _Attempt, run: Event) -> bool:
    """Whether the run does not say how the attempt ended, though that is known."""
    wanted = {"complete": "completed", "fail": "failed", "release": "cancelled"}
    return attempt.ok == "yes" and bool(run["status"] != wanted[attempt.how])


def _in_buffer(attempt: _Attempt, died: float, outages: Iterable[tuple[float, float]]) -> bool:
    """Whether what the attempt reported last may have been unwritten at the death."""
    last = attempt.start["t"] if attempt.settle is None else attempt.settle["t"]
    if died < last:
        return False
    down = sum(max(0.0, min(died, end) - max(last, since)) for since, end in outages)
    return bool(died - last - down <= _BUFFER)
