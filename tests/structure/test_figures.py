"""Each counter finds a fault that is planted in a tiny tree, and nothing in a clean one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import Module, module_from_source, read_modules
from tests.structure import entered_functions
from tests.structure.citations import LAW, cited_lines, missing_pages, unresolved_rules
from tests.structure.classes import duplicate_class_names, single_subclass_bases
from tests.structure.entered_functions import BACKWARD
from tests.structure.figures import PRODUCT, ROOT, TRIP_FILES_BEFORE, measure
from tests.structure.rooms import (
    LAYERS,
    room_cycles,
    room_imports,
    rooms_of,
    undeclared_rooms,
    upward_imports,
)
from tests.structure.trip import EXCLUDED, INNER_STEPS, Calls, files_of_trip, is_excluded

Files = dict[str, str]

CLEAN: Files = {
    "protocol/__init__.py": "",
    "protocol/errors.py": '"""R4."""\n\n# See docs/protocol/rounds.md.\nclass Wrong: ...\n',
    "node/__init__.py": "",
    "node/rules/__init__.py": "",
    "node/rules/ballot.py": "from protocol.errors import Wrong\n\nx = Wrong()\n",
    "node/edge/link.py": "from node.rules.ballot import x\n",
    LAW: '<a id="r4"></a>\n\n## R4\n',
}
TINY_LAYERS = (("protocol",), ("node/rules",), ("node/edge",))


def parse(files: Files) -> list[Module]:
    return [module_from_source(path, text) for path, text in files.items() if path.endswith(".py")]


def write(root: Path, files: Files) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    return root


def test_clean_tree_has_no_faults(tmp_path: Path) -> None:
    told = measure(write(tmp_path, CLEAN), TINY_LAYERS, trip=["node/a.py", "dht/b.py"]).as_json()
    assert told == {
        "product_lines": 8,
        "product_files": 6,
        "room_cycles": 0,
        "upward_imports": 0,
        "single_subclass_bases": 0,
        "duplicate_class_names": 0,
        "unresolved_citations": 0,
        "trip_files": 1,
        "trip_files_before": TRIP_FILES_BEFORE,
        "rooms": 3,
        "rooms_in_cycles": 0,
        "undeclared_rooms": 0,
        "missing_pages": 0,
        "comments_per_100_lines": 12.5,
    }
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize(
    ("key", "path", "text"),
    [
        ("room_cycles", "node/rules/ballot.py", "def f():\n    import node.edge.link\n"),
        ("upward_imports", "protocol/errors.py", "import node.rules.ballot\n"),
        ("undeclared_rooms", "node/attic/old.py", ""),
        ("single_subclass_bases", "node/rules/a.py", "class A: ...\nclass B(A): ...\nB()\n"),
        ("duplicate_class_names", "protocol/other.py", "class Wrong: ...\n"),
        ("unresolved_citations", "node/edge/link.py", "# By R5.\n"),
        ("missing_pages", "node/edge/link.py", "# See design.md.\n"),
    ],
)
def test_planted_fault_is_counted(tmp_path: Path, key: str, path: str, text: str) -> None:
    found = measure(write(tmp_path, CLEAN | {path: text}), TINY_LAYERS).as_json()
    assert found[key] == 1
    assert found["trip_files"] is None


def test_methods_and_the_face_are_product_code(tmp_path: Path) -> None:
    more = {"sim/methods/gossip.py": "x = 1\ny = 2\n", "barnraise/__init__.py": "z = 3\n"}
    figures = measure(write(tmp_path, CLEAN | more), TINY_LAYERS)
    assert (figures.files, figures.lines) == (8, 11)


def test_rooms_are_folders_with_modules() -> None:
    modules = parse({"node/__init__.py": "", "node/a/b.py": "", "node/c/__init__.py": "x = 1"})
    assert rooms_of(modules) == ["node/a", "node/c"]
    assert undeclared_rooms(rooms_of(modules), [("node/a",)]) == ["node/c"]


def test_import_within_a_room_is_no_room_import() -> None:
    modules = parse({"node/a.py": "import node.b\nimport trio\n", "node/b.py": ""})
    assert room_imports(modules) == []


def test_import_for_types_counts_once() -> None:
    typed = "import node.b.y\nif TYPE_CHECKING:\n    from node.b.y import Y\n"
    (one,) = room_imports(parse({"node/a/x.py": typed, "node/b/y.py": "class Y: ..."}))
    assert str(one) == "node/a/x.py:1 node/a imports node.b.y of node/b"


def test_door_to_the_simulator_is_no_import_between_rooms() -> None:
    files = {"node/cli.py": "def f():\n    import sim.run\n", "sim/run.py": ""}
    assert room_imports(parse(files)) == []
    files["node/cli.py"] = "import sim.run\n"
    assert len(room_imports(parse(files))) == 1


def test_cycle_over_three_rooms_is_one_group_and_its_tail_is_not_in_it() -> None:
    files = {
        "node/a/x.py": "import node.b.x",
        "node/b/x.py": "import node.c.x",
        "node/c/x.py": "import node.a.x\nimport node.d.x",
        "node/d/x.py": "",
    }
    assert room_cycles(room_imports(parse(files))) == [["node/a", "node/b", "node/c"]]


def test_undeclared_room_may_be_imported_by_none() -> None:
    imports = room_imports(parse({"node/a/x.py": "import node.b.x", "node/b/x.py": ""}))
    assert len(upward_imports(imports, [("node/a",)])) == 1
    assert upward_imports(imports, [("node/a", "node/b")]) == []
    assert upward_imports(imports, [("node/b",)]) == []


CHAIN = "class A: ...\nclass B(A): ...\n"


@pytest.mark.parametrize(
    "more",
    [
        "class C(A): ...\n",
        "A()\n",
        "register('a', A)\n",
        "made = {'a': A}\n",
    ],
)
def test_base_with_two_subclasses_or_instances_is_no_fault(more: str) -> None:
    assert single_subclass_bases(parse({"node/a.py": CHAIN + more})) == []


@pytest.mark.parametrize(
    "more",
    [
        "",
        "def f(a: A) -> 'A': ...\n",
        "isinstance(x, A)\n",
        "A.method(x)\n",
        "class D:\n    a: A\n",
    ],
)
def test_base_that_is_only_named_is_a_fault(more: str) -> None:
    (found,) = single_subclass_bases(parse({"node/a.py": CHAIN + more}))
    assert str(found) == "node/a.py:1 A"


def test_base_is_found_through_imports_and_aliases() -> None:
    files = {
        "node/a.py": "class A: ...\n",
        "node/face.py": "from node.a import A as A\n",
        "node/b.py": "from node import face as f\nclass B(f.A[int]): ...\nB()\n",
    }
    assert [one.name for one in single_subclass_bases(parse(files))] == ["A"]


@pytest.mark.parametrize(
    ("seam", "count"),
    [
        ("class A(Protocol): ...\n", 0),
        ("class A(ABC): ...\n", 0),
        ("class A:\n    @abstractmethod\n    def f(self): ...\n", 0),
        ("class A: ...\n", 1),
    ],
)
def test_seam_that_an_annotation_names_is_spared(seam: str, count: int) -> None:
    text = seam + "class B(A): ...\ndef f(a: 'list[A] | None'): ...\n"
    assert len(single_subclass_bases(parse({"node/a.py": text}))) == count


def test_abstract_base_that_no_annotation_names_is_a_fault() -> None:
    text = "class A(ABC): ...\nclass B(A): ...\n"
    assert len(single_subclass_bases(parse({"node/a.py": text}))) == 1


def test_tests_may_add_a_subclass_but_no_instance() -> None:
    product = parse({"node/a.py": CHAIN})
    makes = parse({"tests/test_a.py": "from node.a import A\nA()\n"})
    extends = parse({"tests/test_a.py": "from node.a import A\nclass T(A): ...\n"})
    assert len(single_subclass_bases(product, makes)) == 1
    assert single_subclass_bases(product, extends) == []


def test_class_name_may_be_in_two_packages_but_not_twice_in_one() -> None:
    files = {
        "node/a.py": "class State: ...\n",
        "node/b/c.py": "class Outer:\n    class State: ...\n",
        "sim/a.py": "class State: ...\n",
    }
    found = duplicate_class_names(parse(files))
    assert {name: [str(one) for one in where] for name, where in found.items()} == {
        "node.State": ["node/a.py:1 State", "node/b/c.py:2 State"]
    }


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("# R4 and R5", ["R4", "R5"]),
        ('x = """One.\n\nBy R14."""', ["R14"]),
        ('x = f"R2 {y}"', ["R2"]),
        ("R4 = 1", []),
        ("# SR4, R4x, R0, /R4, R400", []),
    ],
)
def test_rules_are_cited_by_comments_and_strings(text: str, cited: list[str]) -> None:
    lines = cited_lines(parse({"node/a.py": text}), {})
    assert [one.cited for one in unresolved_rules(lines, "")] == cited


def test_rule_resolves_to_its_anchor_and_to_no_other() -> None:
    lines = cited_lines([], {"README.md": "By R1,\nR4 and R14."})
    left = unresolved_rules(lines, '<a id="r14"></a>\n<a name="R4"></a> R1')
    assert [str(one) for one in left] == ["README.md:1 cites R1"]


def test_pages_are_found_by_the_end_of_their_path() -> None:
    text = "rounds.md, docs/rounds.md, ../docs/rounds.md, law.md, https://a.org/b.md, a.org/b/c.md"
    lines = cited_lines([], {"README.md": text})
    assert [one.cited for one in missing_pages(lines, ["docs/rounds.md"])] == ["law.md"]


def trainer(first_bucket: int) -> Calls:
    """Six rounds with a pass in each bucket, and as long a pause after each round."""
    period = 2 * INNER_STEPS
    passes = [
        first_bucket + number * period + step for number in range(6) for step in range(INNER_STEPS)
    ]
    return Calls(entered=[(at, BACKWARD) for at in passes], backward=passes)


def test_trip_counts_files_of_every_exchange_and_of_no_quiet_time() -> None:
    period = 2 * INNER_STEPS
    pauses = [number * period + INNER_STEPS + 20 for number in range(6)]
    steps = [number * period + INNER_STEPS - 10 for number in range(6)]
    entered = [
        *((at, "protocol/rounds/round_machine.py seal") for at in pauses),
        *((at, "node/gossip.py tick") for at in [*pauses, *steps]),
        *((at, "node/both.py tick") for at in [*pauses, *steps]),
        *((at, "node/both.py seal") for at in pauses),
        # It happens in one exchange alone.
        (pauses[3], "node/rare.py beat"),
    ]
    network = Calls(entered=sorted(entered), backward=[])
    calls = [trainer(0), trainer(3), network]
    assert files_of_trip(calls) == ["node/both.py", "protocol/rounds/round_machine.py"]


def test_trip_needs_two_trainers() -> None:
    with pytest.raises(AssertionError, match="1 processes"):
        files_of_trip([trainer(0)])


def test_exclusions_are_files_and_folders() -> None:
    assert is_excluded("dht/transport/libp2p_host.py")
    assert is_excluded("protocol/wire.py")
    assert not is_excluded("protocol/rounds/round_machine.py")
    assert not is_excluded("protocol/wire_more.py")


def test_exclusions_exist_so_that_none_is_forgotten_where_files_move() -> None:
    assert [path for path in EXCLUDED if not (ROOT / path).exists()] == []


def test_recorder_sees_functions_of_the_tree_and_the_methods_of_its_dataclasses(
    tmp_path: Path,
) -> None:
    source = "@dataclass\nclass A:\n    x: int\ndef f(): return A(1)\ndef g(): ...\n"
    tree = write(
        tmp_path / "tree",
        {"node/__init__.py": "", "node/a.py": "from dataclasses import dataclass\n" + source},
    )
    site, records = tmp_path / "site", tmp_path / "records"
    site.mkdir()
    records.mkdir()
    shutil.copy(entered_functions.__file__, site / "sitecustomize.py")
    subprocess.run(
        [sys.executable, "-P", "-c", "from node.a import f; f()"],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(site), str(tree)])}
        | {entered_functions.TREE: str(tree), entered_functions.RECORDS: str(records)},
        check=True,
    )
    (record,) = records.glob("*.txt")
    seen = [line.split(" ")[1:] for line in record.read_text("utf-8").splitlines()]
    assert ["node/a.py", "f"] in seen
    assert any(path == "node/a.py" and name.endswith("__init__") for path, name in seen)
    # The class is made when it is imported; `g` is not called.
    assert not {"A", "g", "<module>"} & {name for _, name in seen}


@pytest.mark.xdist_group("tree")
def test_layers_of_this_tree_name_rooms_that_exist() -> None:
    rooms = rooms_of(read_modules(ROOT, PRODUCT))
    assert sorted(room for layer in LAYERS for room in layer) == rooms
