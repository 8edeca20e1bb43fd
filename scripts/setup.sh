#!/bin/sh
# setup.sh PYTHON VENV EXTRAS: installs the project, editable, into a virtual environment.
set -eu
python=$1 venv=$2 extras=$3

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Trainyard needs Python 3.11 or later; '$python' is older or missing. Choose another: make PYTHON=python3.12 ..." >&2
    exit 1
fi
if [ ! -x "$venv/bin/python" ] && ! "$python" -m venv "$venv"; then
    rm -rf "$venv"
    echo "The virtual environment could not be created. On Debian: apt-get install python3-venv" >&2
    exit 1
fi
echo "Setting up $venv ($extras); the first time takes a minute or two."
PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip install --quiet --constraint constraints.txt pip
PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip install --quiet --constraint constraints.txt \
    --editable ".[$extras]"
