#!/bin/sh
# install.sh EXTRAS: the project with these extras into /opt/trainyard, in the versions that its tests run with.
set -eu
if [ -s docker/ca-bundle.crt ]; then
    PIP_CERT=$PWD/docker/ca-bundle.crt
    export PIP_CERT
fi
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore
python3 -m venv /opt/trainyard
/opt/trainyard/bin/python3 -m pip install --constraint constraints.txt --upgrade pip
/opt/trainyard/bin/python3 -m pip install --constraint constraints.txt ".[$1]"
cp docker/chores.py /opt/trainyard/chores.py
