#!/bin/sh
# Makes .venv ready with PYTHON (the first argument); a second run finds it ready and does nothing.
# It is remade when the interpreter changes and brought up to date when a lock does.
set -eu

python=$1
stamp=.venv/forebay-ready

fail() {
    printf 'forebay: %s\n' "$1" >&2
    exit 2
}

found=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>&1) ||
    fail "PYTHON=$python does not run: $found
Name a Python >= 3.11: make PYTHON=/path/to/python3.13 test"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "PYTHON=$python is Python $found, and forebay needs Python >= 3.11.
Name a newer one: make PYTHON=/path/to/python3.13 test"

wanted="$found $(cat requirements/*.txt pyproject.toml scripts/setup.sh | cksum)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x .venv/bin/python ]; then
    exit 0
fi

if [ ! -f "$stamp" ] || [ "$(cut -d ' ' -f 1 "$stamp")" != "$found" ] || [ ! -x .venv/bin/python ]; then
    base=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", None) or sys.executable)')
    echo "Making .venv with Python $found ..." >&2
    "$base" -m venv --clear .venv ||
        fail "$base cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv"
fi

echo "Installing what requirements/dev.txt pins into .venv ..." >&2
pip=".venv/bin/python -m pip --disable-pip-version-check --quiet"
if $pip install --require-hashes -r requirements/bootstrap.txt; then
    pip=".venv/bin/python -m uv --quiet pip"
else
    echo "uv cannot be installed here; going on with pip, which is slower." >&2
fi
$pip install --require-hashes -r requirements/dev.txt
$pip install --no-deps --no-build-isolation --editable .
printf '%s' "$wanted" > "$stamp"
