"""What a worker process does: one episode after another, each with an instance of its own."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import socket
import traceback
from typing import Any

import msgspec

from forebay.envs.outcomes import checked_observation, checked_outcome
from forebay.envs.worker_wire import Blueprint, Check, Close, Reply, Request, Reset, Step
from forebay.errors import ConfigError


class Episodes:
    """The instances of an environment's class; its methods may block or be coroutines.

    Args:
        blueprint: What they have in common.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._class: type[Any] | None = None
        self._environment: Any = None
        self._runner: asyncio.Runner | None = None

    def load(self) -> type[Any]:
        """Import the class and what it preloads, once."""
        if self._class is None:
            module_name, _, class_name = self._blueprint.entrypoint.partition(":")
            loaded: type[Any] = getattr(importlib.import_module(module_name), class_name)
            preload = getattr(loaded, "preload", None)
            if preload is not None:
                preload(**self._blueprint.kwargs)
            self._class = loaded
        return self._class

    def answer(self, request: Request) -> Reply:
        """Do what the actor asks for."""
        match request:
            case Check():
                self._finish(self._make().close())
            case Reset(task):
                self._environment = self._make()
                return Reply(observation=checked_observation(self._finish(self._environment.reset(task))))
            case Step(action):
                return Reply(outcome=checked_outcome(self._finish(self._environment.step(action))))
            case Close():
                self._finish(self._environment.close())
                self._environment = None
        return Reply()

    def _make(self) -> Any:
        loaded = self.load()
        try:
            return loaded(**self._blueprint.kwargs)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{loaded.__qualname__} refuses its kwargs: {error}") from error

    def _finish(self, result: Any) -> Any:
        if not inspect.isawaitable(result):
            return result
        # Made here, since an event loop does not survive a fork.
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(_wait_for(result))


def serve(channel: socket.socket, episodes: Episodes) -> None:
    """Answer requests until the channel closes.

    An environment that raises ends the worker: nobody knows what state it is in. The actor is told why, and
    the traceback goes to stderr.

    Consumes: requests, a line each. Waits for: the channel, and the environment. Unblocked by: a request,
        the end of the channel, or death. Produces: a reply for each.
    """
    decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
    with channel.makefile("rb") as requests:
        for line in requests:
            channel.sendall(msgspec.json.encode(_answer(episodes, decoder.decode(line), channel)) + b"\n")


def _answer(episodes: Episodes, request: Request, channel: socket.socket) -> Reply:
    try:
        return episodes.answer(request)
    except ConfigError as error:
        return Reply(refusal=str(error))
    except BaseException as error:  # foreign code may even exit; the actor hears of it before the worker ends
        traceback.print_exc()
        failure = Reply(failure=f"{type(error).__name__}: {error}"[:500])
        channel.sendall(msgspec.json.encode(failure) + b"\n")
        raise


async def _wait_for(result: Any) -> Any:
    return await result
