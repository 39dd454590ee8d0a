"""What is too long keeps a readable head, and is told apart by its end."""

from tests.unit.keys.rules import key_of, rule


class TestLength:
    def test_a_long_value_keeps_a_readable_head_and_differs_at_its_end(self):
        one, other = key_of("order " * 20_000 + "a"), key_of("order " * 20_000 + "b")

        assert one != other
        assert one.startswith("item:order%20order%20")
        assert max(len(one), len(other)) <= len("item:") + 120

    def test_the_longest_short_value_stays_whole(self):
        assert key_of("x" * 120) == "item:" + "x" * 120
        assert "~" in key_of("x" * 121)
        assert "~" in key_of("é" * 21)

    def test_a_short_value_cannot_pose_as_a_long_one(self):
        long = key_of("x" * 200)

        assert key_of(long.removeprefix("item:")) != long

    def test_the_head_is_never_cut_inside_an_escape(self):
        for shift in range(3):
            head = key_of("x" * shift + "é" * 200).removeprefix("item:").partition("~")[0]
            assert len(head.replace("%C3", "").replace("%A9", "")) == shift

    def test_a_long_list_differs_from_its_long_json_text(self):
        names = ["ann"] * 100
        text = "[" + ",".join(['"ann"'] * 100) + "]"

        assert key_of(names) != key_of(text)

    def test_the_whole_key_is_bounded_and_still_told_apart(self):
        def task(*rows): ...

        by = rule(":".join(f"<rows[{n}]>" for n in range(6)), task)
        one, other = (by.render((*["x" * 110] * 5, last), {}) for last in "ab")

        assert one != other
        assert len(one) <= 512
        assert one.startswith("x" * 110 + ":")
