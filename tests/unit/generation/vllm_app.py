"""A small server that speaks the control and generate routes of vLLM 0.32 and behaves as it was seen to.

Its model is one number, the first of tensor `w`: it samples that number again and again, so that every token
tells which weights sampled it. A load that fails leaves it without weights, and sampling without weights ends
it, as in vLLM. Adapters add the first number of their first tensor; a step that needs them reads them from
their path, unless a worker holds them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN_S = 0.002
CONTEXT = 4096


class FakeVllm:
    """The state of the server, the verbs it was asked for, and how it is to misbehave.

    Attributes:
        verbs: Control verbs in the order they took effect.
        failing: Verbs that answer 500 instead; `failing_once` do so one time, `hanging` ones take effect and
            never answer.
        started: What the server was started with: routes left out, and its configuration.
    """

    def __init__(self, **started: Any) -> None:
        self.verbs: list[str] = []
        self.failing: set[str] = set()
        self.failing_once: set[str] = set()
        self.hanging: set[str] = set()
        self.started = {
            "dev_mode": True,
            "scale_out": True,
            "logprobs_mode": "processed_logprobs",
            "load_format": "safetensors",
            "chunked": True,
            "device": "cuda",
            "root": "policy",
            "forebay": False,
            "overrides": {},
            "max_lora_rank": None,
            "lora_route": True,
        } | started
        self.bodies: list[dict[str, Any]] = []
        self.loaded: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Lose label and weights; serve what the server was started with."""
        self.weights: int | None = -1
        self.label = "default"
        self.dead = False
        self.going = asyncio.Event()
        self.going.set()
        self.aborted: set[str] = set()
        self.running: set[str] = set()
        self.load_format = self.started["load_format"]
        self.adapters: dict[str, Path] = {}
        self.held: int | None = None

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/inference/v1/abort_requests", self.abort, methods=["POST"]),
        ]
        if self.started["lora_route"]:
            routes.append(Route("/v1/load_lora_adapter", self.load_adapters, methods=["POST"]))
        if self.started["scale_out"]:
            routes.append(Route("/inference/v1/generate", self.generate, methods=["POST"]))
        if self.started["dev_mode"]:
            routes += [
                Route("/weight_info", self.weight_info),
                Route("/server_info", self.server_info),
                *(
                    Route(path, self.controlling(verb), methods=["POST"])
                    for path, verb in {
                        "/pause": "pause",
                        "/resume": "resume",
                        "/collective_rpc": "rpc",
                        "/update_weight_version": "label",
                        "/reset_prefix_cache": "reset",
                    }.items()
                ),
            ]
        return Starlette(routes=routes)

    async def health(self, _: Request) -> Response:
        return Response(status_code=503 if self.dead else 200)

    async def models(self, _: Request) -> Response:
        card: dict[str, Any] = {"id": "policy", "object": "model", "owned_by": "vllm"}
        card |= {"root": self.started["root"], "max_model_len": CONTEXT}
        if self.started["forebay"]:
            card["forebay"] = {"version": [0, 1], "context": CONTEXT, "vocabulary": 8}
        others = [{"id": name, "object": "model", "root": str(p)} for name, p in self.adapters.items()]
        return JSONResponse({"object": "list", "data": [card, *others]})

    async def weight_info(self, _: Request) -> Response:
        return JSONResponse({"weight_version": self.label})

    async def server_info(self, _: Request) -> Response:
        config = {
            "model_config": {
                "logprobs_mode": self.started["logprobs_mode"],
                "hf_overrides": self.started["overrides"],
            },
            "load_config": {"load_format": self.load_format},
            "scheduler_config": {"enable_chunked_prefill": self.started["chunked"]},
            "device_config": {"device": self.started["device"]},
            "lora_config": None,
        }
        if self.started["max_lora_rank"]:
            config["lora_config"] = {"max_lora_rank": self.started["max_lora_rank"]}
        return JSONResponse({"vllm_config": config, "vllm_env": {}, "system_env": {}})

    def controlling(self, verb: str) -> Any:
        """Return the route of a verb."""

        async def route(request: Request) -> Response:
            body = await request.json() if await request.body() else {}
            name = {"reload_weights": "load"}.get(body.get("method"), body.get("method", verb))
            if name in self.failing | self.failing_once or self.dead:
                self.failing_once.discard(name)
                if name == "load":
                    self.weights = None
                return JSONResponse({"error": {"message": f"{name} failed", "code": 500}}, 500)
            self.verbs.append(name)
            answer = getattr(self, "relabel" if name == "label" else name)(request, body)
            if name in self.hanging:
                await asyncio.sleep(3600)
            return answer if isinstance(answer, Response) else JSONResponse({})

        return route

    def pause(self, request: Request, _: Any) -> None:
        assert request.query_params["mode"] == "keep"
        self.going.clear()

    def resume(self, *_: Any) -> None:
        self.going.set()

    def reset(self, request: Request, _: Any) -> None:
        assert request.query_params["reset_running_requests"] == "true"

    def relabel(self, _: Request, body: Any) -> None:
        self.label = body["new_version"]

    def update_config(self, _: Request, body: Any) -> None:
        self.load_format = body["kwargs"]["overrides"]["load_config"]["load_format"]

    def load(self, _: Request, body: Any) -> Response:
        assert not self.going.is_set(), "loaded while sampling"
        self.weights = None
        directory = Path(body["kwargs"]["weights_path"])
        try:
            if self.load_format != "safetensors":
                raise OSError(f"{self.load_format} cannot be reloaded")
            tensors: dict[str, Any] = {}
            for file in directory.glob("*.safetensors"):
                tensors |= load_file(file)
            self.loaded = sorted(tensors)
            self.held = None
            self.weights = int(tensors[min(tensors)].flat[0])
        except (OSError, ValueError, SafetensorError) as error:
            return JSONResponse({"error": {"message": str(error), "code": 500}}, 500)
        return JSONResponse({"results": [None]}, 200 if self.weights is not None else 500)

    def list_loras(self, *_: Any) -> Response:
        return JSONResponse({"results": ["{1}" if self.held is not None else "set()"]})

    def remove_lora(self, _: Request, body: Any) -> Response:
        assert not self.going.is_set(), "removed while sampling"
        assert body["kwargs"] == {"lora_id": 1}
        self.held = None
        return JSONResponse({"results": ["True"]})

    async def load_adapters(self, request: Request) -> Response:
        body = await request.json()
        if not body.get("lora_name") or body["lora_name"] in self.adapters:
            return JSONResponse({"error": {"message": "invalid", "code": 400}}, 400)
        self.verbs.append("adapters")
        self.adapters[body["lora_name"]] = Path(body["lora_path"])
        self.read_adapters(body["lora_name"])
        return Response("Success")

    def read_adapters(self, name: str | None) -> int:
        """Return what adapters add, read from their path if no worker holds them."""
        if name is None:
            return 0
        if self.held is None:
            tensors = load_file(self.adapters[name] / "adapter_model.safetensors")
            assert (self.adapters[name] / "adapter_config.json").is_file()
            self.held = int(tensors[min(tensors)].flat[0])
        return self.held

    async def abort(self, request: Request) -> Response:
        self.aborted |= set((await request.json())["request_ids"]) & self.running
        return JSONResponse({"status": "aborted"})

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        if "token_ids" not in body:
            return JSONResponse({"error": {"message": "token_ids missing", "code": 400}}, 400)
        if body.get("model") not in (None, *self.adapters):
            return JSONResponse({"error": {"message": "The model does not exist.", "code": 404}}, 404)
        self.bodies.append(body)
        name = f"generate-tokens-{body['request_id']}"
        self.running.add(name)
        try:
            tokens, labels, finish = await self.sample(
                name, body["sampling_params"]["max_tokens"], body.get("model")
            )
        finally:
            self.running.discard(name)
            self.aborted.discard(name)
        if self.dead:
            return JSONResponse({"error": {"message": "EngineCore encountered an issue", "code": 500}}, 500)
        content = [{"token_id": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]
        choice = {"index": 0, "token_ids": tokens, "finish_reason": finish, "logprobs": {"content": content}}
        choice["weight_versions"] = spans(labels)
        return JSONResponse({"request_id": name, "output_mode": "tokens", "choices": [choice]})

    async def sample(self, name: str, max_tokens: int, model: str | None) -> tuple[list[int], list[str], str]:
        """Sample token by token while not paused."""
        tokens: list[int] = []
        labels: list[str] = []
        while len(tokens) < max_tokens:
            if name in self.aborted:
                return tokens, labels, "abort"
            if not self.going.is_set():
                await asyncio.sleep(TOKEN_S)
                continue
            if self.weights is None:
                self.dead = True
                return tokens, labels, "error"
            tokens.append(self.weights + self.read_adapters(model))
            labels.append(self.label)
            await asyncio.sleep(TOKEN_S)
        return tokens, labels, "length"


def spans(labels: list[str]) -> list[dict[str, Any]]:
    """Return runs of equal labels as vLLM writes them."""
    found: list[dict[str, Any]] = []
    for place, label in enumerate(labels):
        if not found or found[-1]["version"] != label:
            found.append({"version": label, "start": place, "end": place})
        found[-1]["end"] = place + 1
    return found
