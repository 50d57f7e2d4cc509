"""A KServe service: a server of the open inference protocol with its image, and the InferenceService."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from hatch_lower.cli.serve.describe import Described
from hatch_lower.format.served import FACTS, ServedMethod, write_served

MODELS = "models"
PORT = 8080  # KServe's default
SERVER = '''\
"""An ASGI application for KServe, written by hatch-lower: the open inference protocol for the methods in `models`.

Run `uvicorn server:app --port 8080`.
"""

from pathlib import Path

from hatch_lower.runtime.serving.app import InferenceApp

app = InferenceApp(Path(__file__).parent / "models")
'''
DOCKERFILE = """\
FROM python:{python}-slim
WORKDIR /server
COPY {wheel} ./
RUN pip install --no-cache-dir uvicorn numpy ./{wheel}
COPY server.py ./
COPY models ./models
USER 1000
CMD ["uvicorn", "server:app", "--host", "0.0.0.0", "--port", "{port}"]
"""
SERVICE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: "{name}"
spec:
  predictor:
    containers:
      - name: kserve-container
        image: "{name}:{tag}"
        ports:
          - containerPort: {port}
            protocol: TCP
        readinessProbe:
          httpGet:
            path: /v2/health/ready
            port: {port}
        livenessProbe:
          httpGet:
            path: /v2/health/live
            port: {port}
"""
README = """\
# A server for KServe

Written by hatch-lower from `{wheel}`. `server.py` answers the open inference protocol (version 2, over HTTP):

{models}

```console
$ docker build -t {name}:{tag} .
$ kubectl apply -f inference-service.yaml
```

Push the image to a registry of the cluster, and name the registry in `inference-service.yaml`. Without a cluster:
`uvicorn server:app --port {port}` in an environment with `{wheel}`, uvicorn and NumPy.

Each request is a call of its own, in a thread. The server knows no users: who reaches the port can call the models.
Numbers that are not finite are an error, because JSON has none.
"""


def write_method(folder: Path, described: Described) -> None:
    place = folder / MODELS / described.served.name
    place.mkdir(parents=True)
    (place / FACTS).write_bytes(write_served(described.served))


def write_kserve(folder: Path, wheel: Path, methods: Sequence[Described]) -> None:
    """Write the files of a service beside the folder with its methods."""
    served: list[ServedMethod] = [described.served for described in methods]
    name = str(canonicalize_name(served[0].distribution))
    values = {
        "name": name if name[0].isalpha() else f"model-{name}",  # a cluster's names begin with a letter
        "tag": re.sub(r"[^A-Za-z0-9_.-]", "-", served[0].version),  # a version may have `+` and `!`, a tag may not
        "wheel": wheel.name,
        "port": PORT,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "models": "\n".join(f"- `POST /v2/models/{each.name}/infer`" for each in served),
    }
    shutil.copyfile(wheel, folder / wheel.name)
    files = {
        "server.py": SERVER,
        "Dockerfile": DOCKERFILE.format(**values),
        "inference-service.yaml": SERVICE.format(**values),
        "README.md": README.format(**values),
    }
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
