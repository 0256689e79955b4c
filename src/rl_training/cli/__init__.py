"""The command line: arguments to workflows, results to the terminal. ``rl-training --help`` imports no torch."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training import __version__
from rl_training.cli.data import app as data_app
from rl_training.cli.deployment import app as deployment_app
from rl_training.cli.evidence import app as evidence_app
from rl_training.cli.finetune import app as finetune_app
from rl_training.cli.ope import app as ope_app
from rl_training.cli.options import NO_USER_CODE, Json, NoUserCode, Overrides, Quiet
from rl_training.cli.running import EXIT_INTERRUPTED, run_and_tell
from rl_training.cli.sharing import app as sharing_app
from rl_training.cli.studies import register as register_study_commands
from rl_training.types import ConfigError, UserError

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.trainer import TrainResult

EXIT_OK, EXIT_BUG, EXIT_USER_ERROR = 0, 1, 2

app = typer.Typer(
    name="rl-training",
    help="Train, evaluate, resume and use reinforcement-learning agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Look at configurations.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(evidence_app)
app.add_typer(finetune_app)
app.add_typer(ope_app)
app.add_typer(deployment_app)
app.add_typer(sharing_app, name="share")

CheckpointArgument = Annotated[
    Path | None, typer.Argument(metavar="[CHECKPOINT]", help="Run directory, checkpoint directory, or its last/best pointer.")
]
CheckpointOption = Annotated[Path | None, typer.Option("--checkpoint", help="The same, as an option.")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. 0: done, 2: the user's mistake, 130: interrupted and saved, 1: a bug."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):  # text out of a file may have characters that the terminal does not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _sigterm_like_sigint(), _environment_put_back():
            app(args=None if argv is None else list(argv), prog_name="rl-training")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_OK
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception:
        traceback.print_exc()
        print("This is a bug in rl_training (or in the environment's code, if it appears above).", file=sys.stderr)
        return EXIT_BUG
    finally:
        if argv is None:  # the process ends here; looking through all its objects for garbage would take it another second
            gc.freeze()
    return EXIT_OK


@contextlib.contextmanager
def _sigterm_like_sigint() -> Iterator[None]:
    """Where a run does not answer them itself, both signals end the command in the same way: tidied up, exit code 130."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment_put_back() -> Iterator[None]:
    """``--no-user-code`` sets an environment variable, for worker processes too, but only as long as the command runs."""
    before = os.environ.get(NO_USER_CODE)
    try:
        yield
    finally:
        os.environ.pop(NO_USER_CODE, None)
        if before is not None:
            os.environ[NO_USER_CODE] = before


def load_config(path_or_name: str | Path) -> TrainConfig:
    """The checked configuration of a file or of a packaged preset such as ``sac/pendulum``."""
    from rl_training.experiment.presets import load_config as load

    return load(path_or_name)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"rl-training {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    no_user_code: NoUserCode = False,
) -> None:
    pass


@app.command()
def train(
    preset: Annotated[
        str | None, typer.Argument(metavar="[PRESET|FILE]", help="A preset (sac/pendulum) or a YAML file.")
    ] = None,
    config: Annotated[str | None, typer.Option("--config", help="The same, as an option.")] = None,
    seed: Annotated[int | None, typer.Option(help="Override the seed.")] = None,
    total_timesteps: Annotated[int | None, typer.Option(help="Override the budget.")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Where the run directory is made.")] = None,
    overrides: Overrides = [],  # noqa: B006 - typer wants a plain default
    track: Annotated[
        list[str], typer.Option("--track", metavar="wandb|mlflow", help="Also send metrics there; may be given twice.")
    ] = [],  # noqa: B006
    run_suffix: Annotated[str | None, typer.Option(help="Appended to the run directory's name.")] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Film an episode of each evaluation, to videos/ of the run.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
    quiet: Quiet = False,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Train an agent from a preset or a configuration file."""
    from rl_training.experiment.presets import load_config as load
    from rl_training.experiment.yaml_files import dump_yaml

    flags = {
        "seed": seed,
        "total_timesteps": total_timesteps,
        "output_dir": output_dir,
        "tracking": track or None,
        "record_video": record or None,
    }
    overrides = [
        *overrides,
        *(f"{key}={json.dumps(str(v) if isinstance(v, Path) else v)}" for key, v in flags.items() if v is not None),
    ]
    loaded = load(_one(preset, config, "a preset or --config; 'rl-training list' shows the presets"), overrides)
    if dry_run:
        settings = loaded.resolved().to_dict()
        print(json.dumps(settings) if as_json else dump_yaml(settings), end="\n" if as_json else "")
        return
    from rl_training.runtime.training import train as run_training

    def start(callbacks: list[object]) -> TrainResult:
        return run_training(loaded, callbacks=callbacks, run_suffix=run_suffix)

    run_and_tell(start, quiet=quiet, as_json=as_json)


@app.command()
def resume(
    path: CheckpointArgument = None,
    checkpoint: CheckpointOption = None,
    total_timesteps: Annotated[int | None, typer.Option(help="A new budget; extends a finished run.")] = None,
    run_suffix: Annotated[str | None, typer.Option(help="Branch off into a new run directory with this suffix.")] = None,
    ignore_stop: Annotated[bool, typer.Option("--ignore-stop", help="Go on even if early stopping ended the run.")] = False,
    quiet: Quiet = False,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Continue a run exactly where its last checkpoint stands."""
    from rl_training.runtime.workflows import resume_training

    where = _one(path, checkpoint, "a run directory or checkpoint")

    def start(callbacks: list[object]) -> TrainResult:
        return resume_training(where, total_timesteps, run_suffix, callbacks=callbacks, ignore_stop=ignore_stop)

    run_and_tell(start, quiet=quiet, as_json=as_json)


@app.command("eval")
def evaluate(
    path: CheckpointArgument = None,
    checkpoint: CheckpointOption = None,
    num_episodes: Annotated[int | None, typer.Option("--num-episodes", "--episodes", "-n", help="Episodes to play.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the episodes; the run's own if not given.")] = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample actions instead of taking the mean.")] = False,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Play episodes with a trained agent."""
    from rl_training.runtime.workflows import evaluate_checkpoint

    where = _one(path, checkpoint, "a run directory or checkpoint")
    metrics = evaluate_checkpoint(where, num_episodes, seed=seed, deterministic=not stochastic)
    if as_json:
        print(json.dumps(metrics))
        return
    score = f"{metrics['eval_return_mean']:.2f} +/- {metrics['eval_return_std']:.2f}"
    print(f"return {score} ({metrics['eval_episodes']:.0f} episodes, {'stochastic' if stochastic else 'deterministic'})")


@app.command()
def predict(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CHECKPOINT|FILE.onnx]", help="Run or checkpoint directory, last/best, or an exported policy."
        ),
    ] = None,
    checkpoint: CheckpointOption = None,
    obs: Annotated[
        str, typer.Option("--obs", help="An observation (or a list of them) as JSON, or - for standard input.")
    ] = "-",
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample the action instead of taking the mean.")] = False,
    as_json: Json = False,
) -> None:
    """The action of a trained agent for an observation."""
    import numpy as np

    where = _one(path, checkpoint, "a run directory, a checkpoint or an ONNX file")
    text = sys.stdin.read() if obs == "-" else obs
    try:
        observation = json.loads(text)
    except ValueError:
        raise ConfigError(f"--obs must be a JSON list of numbers, got {text[:80]!r}") from None
    action = np.asarray(_predict(where, observation, stochastic)).tolist()
    print(json.dumps({"action": action} if as_json else action))


def _predict(where: Path, observation: Any, stochastic: bool) -> Any:
    """The action of an exported policy or of a checkpoint's."""
    if where.suffix == ".onnx":
        if stochastic:
            raise ConfigError(f"{where} holds the deterministic policy only: leave --stochastic out, or use the checkpoint")
        from rl_training.runtime.onnx_policy import OnnxPolicy

        return OnnxPolicy(where).predict(observation)
    from rl_training.runtime.workflows import predict_checkpoint

    return predict_checkpoint(where, observation, deterministic=not stochastic)


register_study_commands(app)


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """The algorithms and presets that come with the package."""
    from rl_training.experiment.presets import list_presets
    from rl_training.experiment.registry import get_algorithm_spec, list_algorithms

    specs = [get_algorithm_spec(name) for name in list_algorithms()]
    if as_json:
        algorithms = [{"name": s.name, "title": s.title, "loop": s.loop, "actions": s.actions} for s in specs]
        print(json.dumps({"algorithms": algorithms, "presets": list_presets()}))
        return
    print("algorithms")
    for spec in specs:
        print(f"  {spec.name:8} {spec.title} ({spec.loop}, {spec.actions} actions)")
    print("\npresets (rl-training train NAME)")
    for spec in specs:
        own = [preset for preset in list_presets() if preset.startswith(f"{spec.name}/")]
        print(textwrap.fill("  ".join(own), 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))


@config_app.command("show")
def config_show(
    preset: Annotated[str, typer.Argument(metavar="PRESET|FILE", help="A preset or a YAML file.")],
    overrides: Overrides = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Print a configuration with every default filled in."""
    train(preset, overrides=overrides, dry_run=True, as_json=as_json)


@config_app.command("schema")
def config_schema(
    algo: Annotated[str | None, typer.Option(help="Schema of this algorithm's algo_kwargs alone.")] = None,
    as_json: Json = False,
) -> None:
    """Print the JSON Schema of a configuration, for editors."""
    from rl_training.experiment.schema import config_schema as whole_schema
    from rl_training.experiment.schema import hyperparameter_schema

    print(json.dumps(whole_schema() if algo is None else hyperparameter_schema(algo), indent=None if as_json else 2))


@app.command()
def doctor(
    dump: Annotated[
        Path | None, typer.Argument(metavar="[DUMP]", help="A nonfinite_step_... directory of a run that met a bad number.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the installation (versions, threads, optional packages, a quick training step), or explain a DUMP."""
    if dump is not None:
        _explain(dump, as_json)
        return
    from rl_training.runtime.doctor import diagnose

    report = diagnose()
    if as_json:
        print(json.dumps(report))
    else:
        for name, text in report["facts"].items():
            print(f"  {name:20} {text}")
        for problem in report["problems"]:
            print(f"problem: {problem}")
        print("all is well" if not report["problems"] else f"{len(report['problems'])} problem(s)")
    if report["problems"]:
        raise typer.Exit(EXIT_BUG)


def _explain(dump: Path, as_json: bool) -> None:
    """What a run that met a NaN or an infinity left behind, in words."""
    from rl_training.runtime.dumps import explain_dump

    found = explain_dump(dump)
    if as_json:
        print(json.dumps(found))
        return
    print(found["what"])
    for title, lines in (("likely causes", found["causes"]), ("what to try", found["advice"])):
        print(f"\n{title}")
        print("\n".join(f"  - {line}" for line in lines))
    for title in ("batch", "weights"):
        if found[title]:
            print(f"\n{title:32} {'least':>11} {'mean':>11} {'greatest':>11}   bad entries")
        for name, facts in found[title].items():
            numbers = " ".join(f"{facts[key]:11.4g}" if key in facts else f"{'-':>11}" for key in ("min", "mean", "max"))
            rows = f", rows {facts['bad_rows']}" if "bad_rows" in facts else ""
            print(f"  {name:30} {numbers}   {facts['non_finite']} of {facts['entries']}{rows}")


def _one(argument: Any, option: Any, what: str) -> Any:
    """The value given as an argument or as an option, exactly once."""
    if (argument is None) == (option is None):
        raise ConfigError(f"give {what}" if argument is None else f"give it once: got {argument} and {option}")
    return option if argument is None else argument
