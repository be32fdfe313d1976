"""The changes of `support/mutants.py`, which runs by itself."""

import ast

from support.mutations import mutations

SOURCE = '''
class Mode(Base):
    """Documentation."""

    equation = "x <- x + a"
    factor = True

    def forward(self, x, sublayer):
        a = sublayer(self.pre_norm(x))
        return x - self.place.layer * a, self.post_norm(x)
'''


def test_changes_are_made_one_at_a_time_and_undone():
    tree = ast.parse(SOURCE)
    before, seen = ast.dump(tree), []
    for line, text in mutations(tree):
        assert ast.dump(tree) != before
        compile(tree, "mode", "exec")
        seen.append((line, text.removeprefix("Mode.forward: ").removeprefix("Mode: ")))
    assert ast.dump(tree) == before
    assert seen == [
        (6, "factor = True  ->  pass"),
        (6, "True  ->  False"),
        (9, "self.pre_norm(x)  ->  x"),
        (9, "self.pre_norm  ->  self.post_norm"),
        (10, "(x - self.place.layer * a, self.post_norm(x))  ->  (self.post_norm(x), x - self.place.layer * a)"),
        (10, "x - self.place.layer * a  ->  x + self.place.layer * a"),
        (10, "x - self.place.layer * a  ->  x"),
        (10, "x - self.place.layer * a  ->  self.place.layer * a"),
        (10, "self.place.layer * a  ->  self.place.layer / a"),
        (10, "self.place.layer * a  ->  self.place.layer"),
        (10, "self.place.layer * a  ->  a"),
        (10, "self.place.layer  ->  self.place.index"),
        (10, "self.place.layer  ->  self.place.layer + 1"),
        (10, "self.post_norm(x)  ->  x"),
        (10, "self.post_norm  ->  self.pre_norm"),
    ]
