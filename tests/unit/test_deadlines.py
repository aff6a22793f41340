"""Named deadlines."""

from proto_v2.deadlines import Deadlines


def test_nothing_is_due_at_first() -> None:
    deadlines = Deadlines()
    assert deadlines.next() is None
    assert deadlines.expire(1 << 62) == []
    deadlines.clear("never set")


def test_a_deadline_is_due_at_its_time_and_not_before() -> None:
    deadlines = Deadlines()
    deadlines.set("round", 100)
    assert deadlines.armed("round")
    assert deadlines.next() == 100
    assert deadlines.expire(99) == []
    assert deadlines.expire(100) == ["round"]
    assert not deadlines.armed("round")
    assert deadlines.expire(100) == []


def test_setting_again_moves_it() -> None:
    deadlines = Deadlines()
    deadlines.set("round", 100)
    deadlines.set("round", 200)
    assert deadlines.expire(150) == []
    assert deadlines.next() == 200


def test_a_cleared_deadline_is_never_due() -> None:
    deadlines = Deadlines()
    deadlines.set("round", 100)
    deadlines.set("ping", 50)
    deadlines.clear("ping")
    assert deadlines.next() == 100
    assert deadlines.expire(1000) == ["round"]


def test_the_earliest_comes_first_and_ties_in_the_order_they_were_set() -> None:
    deadlines = Deadlines()
    for name, at_ns in (("c", 30), ("b", 20), ("a", 20), ("later", 31), (("session", 1), 10)):
        deadlines.set(name, at_ns)
    assert deadlines.next() == 10
    assert deadlines.expire(30) == [("session", 1), "b", "a", "c"]
    assert deadlines.next() == 31
