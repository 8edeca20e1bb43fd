# The image that package jobs run in: `trainyard runtimes build` (docs/how-to/containers.md). It puts beside this file
#
#   requirements.txt  what is installed: the extra `trainer` of the package's own metadata (pyproject.toml is the one
#                     place that says it), the `packages` of configs/runtimes.yaml, and the pip and setuptools that
#                     later install a job's own packages. Where configs/runtimes.yaml has a `framework`: without the extra
#   constraints.txt   in which versions: those that the tests run with; empty where there is a `framework`
#   ca-bundle.crt     what --ca-bundle names; else empty
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}

# --build-arg PIP_INDEX_URL=... for a mirror of the package index. Neither is in the image afterwards.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL

# An environment of its own: Debian's Python does not let pip into its own. It belongs to root and can be read by
# all, so that the image runs as any user; nothing in it needs a home directory that can be written.
COPY requirements.txt constraints.txt ca-bundle.crt /opt/build/
RUN set -eu; \
    cd /opt/build; \
    python3 -c 'import sys; sys.version_info >= (3, 11) or sys.exit("The base image has Python " + sys.version.split()[0] + "; it takes 3.11 or later.")'; \
    if [ -s ca-bundle.crt ]; then export PIP_CERT=/opt/build/ca-bundle.crt; fi; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore; \
    python3 -m venv /opt/runtime; \
    /opt/runtime/bin/python3 -m pip install --upgrade --constraint constraints.txt pip; \
    /opt/runtime/bin/python3 -m pip install --constraint constraints.txt --requirement requirements.txt; \
    /opt/runtime/bin/python3 -m pip check; \
    rm -r /opt/build

ENV PATH=/opt/runtime/bin:$PATH \
    VIRTUAL_ENV=/opt/runtime \
    PYTHONUNBUFFERED=1
CMD ["python3"]
