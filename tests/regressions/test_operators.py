"""What operators' verbs and open transactions did to one another, and to rows that are not as expected."""

from __future__ import annotations

from uuid import UUID

import pytest
from conformance.fixtures import Work
from conformance.stores import BLOCKED, Store, Tables

import xjobs
from pytest_xjobs.clock import Clock

GIVEN = UUID(int=0xABC)


@pytest.mark.parametrize("verb", ["cancel", "requeue", "promote", "remove"])
async def test_a_refused_verb_holds_its_row_until_its_transaction_ends(
    store: Store, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, verb: str
) -> None:
    """Postgres locks before it looks at the state; in memory a row that was not written stayed open to others."""
    clock.freeze()
    made = await work.aenqueue(n=1)
    state = {"cancel": "done", "requeue": "running", "promote": "done", "remove": "running"}[verb]
    tables.change(made.id, state=state)
    other, asking = await store.begin(), await store.begin()
    with pytest.raises(xjobs.Error):
        await getattr(other.queue, verb)(made.id)
    with pytest.raises(BLOCKED):
        await getattr(asking.queue, verb)(made.id)
    await asking.rollback()
    await other.commit()
    with pytest.raises(xjobs.Error) as caught:
        await getattr(queue, verb)(made.id)
    assert caught.value.state == state


async def test_a_row_that_is_only_held_answers_for_its_key(store: Store, queue: xjobs.AsyncQueue, work: Work) -> None:
    """Whether the key is free is not in doubt: an enqueue does not wait for a row that another one has just locked."""
    made = await work.aenqueue(n=1)
    other, asking = await store.begin(), await store.begin()
    with pytest.raises(xjobs.JobNotPromotable):
        await other.queue.promote(made.id)
    assert await asking.queue.enqueue(work.call(n=1)) == made._replace(deduped=True)
    await other.queue.cancel(made.id)
    with pytest.raises(BLOCKED):
        await asking.queue.enqueue(work.call(n=1))


async def test_a_given_id_whose_row_is_being_replaced_answers_the_committed_run(
    store: Store, queue: xjobs.AsyncQueue, work: Work
) -> None:
    """Memory answered with the run of the new row, which nobody else could see and which might yet be rolled back."""
    given = work.using(id=GIVEN)
    made = await given.aenqueue(n=1)
    other = await store.begin()
    await other.queue.remove(GIVEN)
    replaced = await other.queue.enqueue(given.call(n=1))
    assert (replaced.id, replaced.deduped) == (GIVEN, False)
    assert replaced.run_id != made.run_id
    assert await given.aenqueue(n=1) == made._replace(deduped=True)
    await other.rollback()
    assert await given.aenqueue(n=1) == made._replace(deduped=True)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_the_holder_of_a_key_is_known_while_its_row_is_being_replaced(
    store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work, ending: str
) -> None:
    """The row that has the holder's id now has another key: memory waited, where Postgres still reads the holder."""
    dead = await work.aenqueue(n=1)
    tables.change(dead.id, state="dead")
    given = work.using(id=GIVEN)
    await given.aenqueue(n=1)
    other = await store.begin()
    await other.queue.remove(GIVEN)
    await other.queue.enqueue(given.call(n=2))
    with pytest.raises(xjobs.JobDuplicate) as caught:
        await queue.requeue(dead.id)
    assert caught.value.id == GIVEN
    assert await queue.requeue_many(state="dead") == (0, 0)
    await getattr(other, ending)()
    assert await queue.requeue_many(state="dead") == ((1, 0) if ending == "commit" else (0, 0))


async def test_a_requeue_of_an_unknown_state_names_no_holder(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work
) -> None:
    """It was refused as a duplicate of the live job None."""
    made = await work.aenqueue(n=1)
    tables.change(made.id, state="archived")
    with pytest.raises(xjobs.JobNotRequeueable, match="archived"):
        await queue.requeue(made.id)


async def test_a_cursor_is_written_in_ascii_digits(queue: xjobs.AsyncQueue, work: Work) -> None:
    """Any decimal digits of Unicode were taken for the instant of a cursor."""
    made = await work.aenqueue(n=1)
    row = await queue.job(made.id)
    assert row is not None
    arabic = row.cursor.split(":")[0].translate({ord("0") + digit: 0x660 + digit for digit in range(10)})
    with pytest.raises(xjobs.PageInvalid):
        await queue.jobs(after=f"{arabic}:{row.id}")
