# Forecasts on macOS, Windows and whatever else runs containers of Linux x86-64:
#
#     docker build --platform linux/amd64 -t neusight .
#     docker run --rm --platform linux/amd64 -v "${PWD}:/work" neusight run --gpu H100 train.py
#
# The script's own packages: FROM neusight, then RUN pip install what it imports.
FROM python:3.11-slim
ARG TORCH=2.13.0
# The CPU build, 200 MB; what PyPI has is a CUDA build of 5 GB, which forecasts the same.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==${TORCH}
COPY . /opt/neusight
RUN pip install --no-cache-dir /opt/neusight
# Fails where this build of torch cannot be patched, and keeps that it can.
RUN neusight doctor
WORKDIR /work
ENTRYPOINT ["neusight"]
CMD ["--help"]
