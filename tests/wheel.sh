#!/bin/sh
# Build the wheel, install it alone into an empty folder, and import both packages from there and not from the checkout.
set -eu
python=$(realpath -s "$1")
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
"$python" -m build --wheel --no-isolation --outdir "$target" . >"$target/log" 2>&1 || { cat "$target/log"; exit 1; }
"$python" -m pip install --quiet --no-deps --target "$target/site" "$target"/tokentar-*.whl
cd "$target"
PYTHONPATH="$target/site" "$python" - "$target/site" <<'EOF'
import sys, pathlib, shard_writer, train
from shard_writer import open_shards, write_shards
from train import ShardLoader, ShardTrainer, World
for module in (shard_writer, train):
    assert pathlib.Path(module.__file__).is_relative_to(sys.argv[1]), module.__file__
assert not (pathlib.Path(sys.argv[1]) / "tests").exists()
print("wheel: installed and imported")
EOF
