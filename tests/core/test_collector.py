"""The collector waits while much is made, and is never left off."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from oqron_core._collector import paused


def test_it_is_off_in_the_block_and_on_after_it() -> None:
    """Also where blocks are nested, and where one fails."""
    with paused():
        assert not gc.isenabled()
        with pytest.raises(KeyError), paused():
            raise KeyError
        assert not gc.isenabled()
    assert gc.isenabled()


def test_where_it_was_turned_off_it_stays_off() -> None:
    """That was somebody's decision."""
    gc.disable()
    try:
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_end_their_blocks_in_any_order() -> None:
    """It is off until the last one is out."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with paused():
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=hold)
    with paused():
        thread.start()
        assert inside.wait(20)
    assert not gc.isenabled()
    leave.set()
    thread.join(20)
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_was_forked_in_the_middle_has_it_on() -> None:
    """The thread that would turn it on again is not in the child."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with paused():
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(20)
    child = os.fork()
    if child == 0:
        with paused():
            off = not gc.isenabled()
        os._exit(0 if off and gc.isenabled() else 1)
    leave.set()
    thread.join(20)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
