"""The house: which room may import which, no circles, and all rooms in the wheel."""

import ast
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("shard_writer", "train")
# each room imports from those before it only
SHARD_WRITER = (
    *("errors", "packing", "storage", "versions", "config", "format", "inputs", "tokenizing", "engines", "writing"),
    *("maintenance", "commands"),
)
TRAIN = ("distributed", "order", "data", "trace", "trainer", "commands", "tokentar")
HEAVY = ("torch", "transformers", "datasets")
WITHOUT_TORCH = ("shard_writer", "train/order", "train/distributed/world.py", "train/commands/plan.py")


def modules() -> dict[str, Path]:
    """All modules by their names when installed."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[1:] if parts[:2] == ("train", "tokentar") else ("tokentar", *parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports_of(path: Path, *, top_level: bool = False) -> set[str]:
    """Names that a file imports; `top_level`: those that are imported with it."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def edges() -> dict[str, set[str]]:
    """Module → modules of ours that it imports, anywhere in it."""
    found = {}
    for name, path in MODULES.items():
        of_packages = {imported for imported in imports_of(path) if imported in MODULES}
        # `from package import module` needs the module, and the package only as the way to it
        found[name] = {i for i in of_packages if not any(other.startswith(f"{i}.") for other in of_packages)} - {name}
    return found


def room(module: str) -> tuple[str, str]:
    """(folder, room) of a module."""
    parts = module.split(".")
    if len(parts) < 2 or parts[1] not in FOLDERS:
        return "train", "tokentar"
    return parts[1], parts[2] if len(parts) > 2 else ""


def test_no_module_imports_itself_by_a_circle() -> None:
    # __init__ files name what they offer for type checkers only, and import it when it is asked for
    graph = {name: needs for name, needs in edges().items() if MODULES[name].name != "__init__.py"}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph) > 80


def test_shard_writer_never_imports_train() -> None:
    for name, needs in edges().items():
        if name.startswith("tokentar.shard_writer"):
            assert not {need for need in needs if need.startswith("tokentar.train")}, name


@pytest.mark.parametrize(("folder", "rooms"), [("shard_writer", SHARD_WRITER), ("train", TRAIN)])
def test_rooms_import_in_one_direction(folder: str, rooms: tuple[str, ...]) -> None:
    for name, needs in edges().items():
        own_folder, own = room(name)
        if own_folder != folder or own not in rooms or MODULES[name].name in ("__init__.py", "__main__.py"):
            continue
        for need in needs:
            other_folder, other = room(need)
            if other_folder == folder and other in rooms:
                assert rooms.index(other) <= rooms.index(own), f"{name} imports {need}"


def test_every_folder_is_a_known_room() -> None:
    for folder, rooms in (("shard_writer", SHARD_WRITER), ("train", TRAIN)):
        there = {path.name for path in (ROOT / folder).iterdir() if path.is_dir() and path.name != "__pycache__"}
        assert there <= set(rooms)


def test_the_writer_and_the_order_import_no_torch() -> None:
    for place in WITHOUT_TORCH:
        start = ROOT / place
        for path in [start] if start.suffix else sorted(start.rglob("*.py")):
            assert "torch" not in {name.split(".")[0] for name in imports_of(path, top_level=True)}, path


def test_the_wheel_holds_every_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(name for name, path in MODULES.items() if path.name == "__init__.py")
