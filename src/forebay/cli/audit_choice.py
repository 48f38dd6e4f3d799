"""Which parts an audit measures, of what, and with which profiles it is put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from forebay.cli.audit_environment import EnvironmentPart
from forebay.cli.audit_parts import PART_NAMES, Part, PartName
from forebay.cli.auditing import Wanted, audited
from forebay.clock import SystemClock
from forebay.config import load_config
from forebay.envs.conformance.watch import Stall
from forebay.errors import ConfigError
from forebay.planner.profile import Profile, conflicts, merge_profiles, read_profile, write_profile
from forebay.telemetry.files import require_place

if TYPE_CHECKING:
    from forebay.cli.audit_rig import Rig

_LIMITS_S: Final = {"generator": 40.0, "weights": 10.0, "store": 10.0, "learner": 20.0}
OnStuck = Callable[[EnvironmentPart, Stall], None]
Make = Callable[[OnStuck], list[Part]]


class Choice(NamedTuple):
    """What the command line asks for.

    Attributes:
        target: A configuration, an environment, or a generator's address.
        parts: Those that are named; None for all that the target has.
        environment: One of a configuration; None for all.
        seconds_s: Time for each part; None for their own.
        environments: How environments are measured.
        generator: Address of a generator that is to be taken.
        token_env: Variable with its token; None for that of the configuration.
        requests: At a time, load by load; None to choose by its slots.
        prompt_tokens: Of prompts that are made up.
        answer_tokens: Of the answers to them.
        command: How all this was asked for.
    """

    target: str
    parts: tuple[PartName, ...] | None
    environment: str | None
    seconds_s: float | None
    environments: Wanted
    generator: str | None
    token_env: str | None
    requests: tuple[int, ...] | None
    prompt_tokens: int
    answer_tokens: int
    command: str

    @property
    def is_address(self) -> bool:
        """Whether the target is a generator's address."""
        return self.target.startswith(("http://", "https://"))

    @property
    def is_file(self) -> bool:
        """Whether the target is a configuration."""
        return self.target.endswith(".toml") or Path(self.target).is_file()

    @property
    def measured(self) -> tuple[PartName, ...]:
        """The parts that are measured, in this order, if the target has them."""
        if self.is_address:
            return ("generator",)
        return self.parts or (PART_NAMES if self.is_file else ("environment",))

    def limit_s(self, part: PartName) -> float:
        """Return the time to measure a part."""
        return self.seconds_s or _LIMITS_S[part]


class Files(NamedTuple):
    """Profiles that are read, and the one that is written.

    Attributes:
        out: Written, or added to; None to write none.
        merge: Taken over.
        replaces: Whether what comes later takes the place of what was there.
    """

    out: Path | None
    merge: tuple[Path, ...]
    replaces: bool

    def known(self) -> Profile:
        """Return what the files hold; refused before anything is measured if it cannot be used.

        Raises:
            ConfigError: A file is no profile of this version, or a part is in two of them; or what is to be
                written cannot be.
        """
        if self.out is not None:
            require_place(self.out)
        paths = [*([self.out] if self.out is not None and self.out.exists() else []), *self.merge]
        profiles = [read_profile(path) for path in paths]
        self._refuse(conflicts(profiles), " and ".join(map(str, paths)))
        return merge_profiles(profiles)

    def refuse_known(self, known: Profile, parts: Sequence[Part]) -> None:
        """Refuse to measure what is known already, unless it is to be replaced.

        Raises:
            ConfigError: A part that would be measured is in a profile.
        """
        held = {*(f"environments.{name}" for name in known.environments), *known.parts}
        if self.out is not None:
            self._refuse([name for part in parts if (name := _held_as(part)) in held], str(self.out))

    def write(self, profile: Profile) -> None:
        """Write the profile, if one is to be written.

        Raises:
            ConfigError: There is nothing to write, or nowhere to.
        """
        if self.out is None or not profile.parts:
            raise ConfigError(
                "nothing to measure and nothing to write",
                remedy="Name what to measure, or files: --merge PROFILE --merge PROFILE --out PROFILE.",
            )
        write_profile(self.out, profile)

    def _refuse(self, names: Sequence[str], where: str) -> None:
        if names and not self.replaces:
            raise ConfigError(
                f"measured already: {', '.join(names)} ({where})",
                remedy="--replace takes the newer one; --part measures others.",
            )


def _held_as(part: Part) -> str:
    return f"environments.{part.label}" if isinstance(part, EnvironmentPart) else part.name


@contextmanager
def parts_of(choice: Choice, known: Profile) -> Iterator[Make]:
    """Yield what makes the parts that are wanted; what they hold in common ends with this.

    Args:
        choice: What is asked for.
        known: What other profiles say.

    Raises:
        ConfigError: The target does not have such a part.
    """
    with ExitStack() as stack:
        yield lambda on_stuck: list(_parts(choice, known, on_stuck, stack))


def _parts(choice: Choice, known: Profile, on_stuck: OnStuck, stack: ExitStack) -> Iterator[Part]:
    if not choice.is_file:
        _refuse_others(choice)
        if choice.is_address:
            yield _generator(choice, None)
            return
    names = choice.measured
    if "environment" in names:
        for auditor in audited(choice.target, choice.environment, choice.environments):
            yield EnvironmentPart(auditor, on_stuck)
    if names == ("environment",):
        return
    from forebay.cli.audit_rig import Rig

    traffic = {} if known.generator is None else dict(known.generator.traffic)
    config = load_config(Path(choice.target))
    rig = stack.enter_context(Rig(config, choice.generator, traffic, SystemClock()))
    if choice.token_env is not None and rig.given is None:
        raise ConfigError(
            "--token-env is for a generator at a URL, and this one is started here",
            got=f"--token-env {choice.token_env}",
            remedy="Name its URL with --generator, or set generator.token_env.",
        )
    for name in names:
        # A generator that runs already is not given other weights.
        if name == "weights" and choice.parts is None and rig.given is not None:
            continue
        if name != "environment":
            yield _machine(name, choice, rig)


def _refuse_others(choice: Choice) -> None:
    allowed: PartName = "generator" if choice.is_address else "environment"
    others = [name for name in choice.parts or () if name != allowed]
    if others:
        raise ConfigError(
            f"{choice.target} has no such part",
            got=", ".join(others),
            limit=allowed,
            remedy="Name a TOML file.",
        )


def _machine(name: PartName, choice: Choice, rig: Rig) -> Part:
    if name == "generator":
        return _generator(choice, rig)
    limit_s, clock = choice.limit_s(name), SystemClock()
    if name == "weights":
        from forebay.cli.auditing_weights import WeightsPart

        return WeightsPart(rig, limit_s, choice.command, clock)
    if name == "store":
        from forebay.cli.auditing_store import StorePart

        return StorePart(rig, limit_s, choice.command, clock)
    from forebay.cli.auditing_learner import LearnerPart

    return LearnerPart(rig, limit_s, choice.command, clock)


def _generator(choice: Choice, rig: Rig | None) -> Part:
    from forebay.cli.auditing_generator import Asked, GeneratorPart

    asked = Asked(choice.requests, choice.prompt_tokens, choice.answer_tokens)
    address = choice.target if rig is None else None
    limit_s = choice.limit_s("generator")
    return GeneratorPart(rig, address, choice.token_env, asked, limit_s, choice.command, SystemClock())
