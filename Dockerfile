# A node or a server of a federation across machines; docs/three-machines.md says what each needs.
#   docker build -t potluck .
#   docker run --rm potluck methods
#   docker run --rm -v "$PWD/hospital:/home/potluck/node" potluck node start node/node.toml
FROM python:3.11-slim

RUN useradd --create-home --uid 1000 potluck
WORKDIR /home/potluck

# PyTorch publishes its CPU build on an index of its own: --build-arg PIP_EXTRA_INDEX_URL=... spares gigabytes of GPU libraries.
ARG PIP_EXTRA_INDEX_URL
COPY constraints.txt pyproject.toml README.md LICENSE ./build/
COPY src ./build/src
RUN pip install --no-cache-dir -c build/constraints.txt "./build[flower]" && rm -r build

# Nothing in a federation needs to be root.
USER 1000
ENTRYPOINT ["potluck"]
CMD ["--help"]
