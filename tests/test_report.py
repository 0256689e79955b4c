"""Reports and comparisons: what is read, what counts, what the page holds, and what it must not do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import CountingEnv, tiny_config

from rl_training.cli import main
from rl_training.experiment.yaml_files import dump_yaml
from rl_training.runtime.training import train
from rl_training.studies.comparison import compare
from rl_training.studies.curves import align_curves, group_runs, load_runs
from rl_training.studies.evidence import gather_evidence, read_references
from rl_training.studies.report import write_report
from rl_training.types import ConfigError


class PaintedEnv(CountingEnv):
    """Counts its steps and can be looked at."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(limit=30)
        self.render_mode = render_mode

    def render(self) -> Any:
        picture = np.full((60, 80, 3), 255, dtype=np.uint8)
        picture[10:50, 2 * self.t : 2 * self.t + 10] = (200, 30, 30)
        return picture


def make_run(
    directory: Path,
    algo: str = "sac",
    env_id: str | None = "Pendulum-v1",
    seed: int = 1,
    returns: tuple[float, ...] = (-300.0, -200.0),
    *,
    status: str = "finished",
    interval: int = 100,
    **config: Any,
) -> Path:
    """The files of a run, without the run: two episodes an evaluation, two seconds a hundred steps."""
    directory.mkdir(parents=True)
    settings = {"algo": algo, "env_id": env_id, "seed": seed, "total_timesteps": interval * len(returns), **config}
    settings.setdefault("algo_kwargs", {"learning_rate": 1e-3})
    (directory / "config.yaml").write_text(dump_yaml({**settings, "output_dir": str(directory.parent)}))
    metadata = {"status": status, "started": f"2026-01-01T00:00:{seed:02d}+00:00", "stop_reason": None}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    rows, logs = ["step,episode,seed,return,length"], []
    for index, score in enumerate(returns, start=1):
        rows += [f"{index * interval},{episode},{episode},{score + offset!r},10" for episode, offset in enumerate((-1.0, 1.0))]
        times = {"time/total_timesteps": index * interval, "time/fps": 50.0, "time/time_elapsed": 3.0 * index}
        logs += [
            json.dumps({"step": index * interval, **times}),
            json.dumps({"step": index * interval, "eval/mean_reward": 1}),
        ]
    (directory / "evaluations.csv").write_text("\n".join(rows) + "\n")
    (directory / "metrics.jsonl").write_text("\n".join(logs) + "\n")
    return directory


def make_study(directory: Path, *, seeds: int = 3, algos: tuple[str, ...] = ("sac", "td3")) -> Path:
    for number, algo in enumerate(algos):
        for seed in range(seeds):
            make_run(directory / algo / f"seed{seed}", algo, seed=seed, returns=(-300.0, -250.0 + 30 * number + seed))
    return directory


def page(path: Path, *paths: Path, **options: Any) -> str:
    write_report(paths, path / "report.html", video=False, **options)
    return (path / "report.html").read_text()


def last_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


# -- reading -------------------------------------------------------------------------------------------------------------


def test_a_run_is_read(tmp_path: Path) -> None:
    (run,) = load_runs([make_run(tmp_path / "run", returns=(-300.0, -100.0, -200.0), seed=5)])
    assert (run.algo, run.env_id, run.seed, run.status) == ("sac", "Pendulum-v1", 5, "finished")
    assert run.steps.tolist() == [100, 200, 300]
    assert run.returns.tolist() == [-300.0, -100.0, -200.0]
    assert (run.score("last"), run.score("best")) == (-200.0, -100.0)
    assert (run.wall_time, run.steps_per_second) == (9.0, pytest.approx(50.0))


def test_a_real_run_is_read(tmp_path: Path) -> None:
    done = train(tiny_config("sac", tmp_path))
    (run,) = load_runs([tmp_path])
    assert run.counts
    assert run.steps.tolist() == [40, 80, 96]
    assert run.score("last") == pytest.approx(done.metrics["eval_return_mean"])
    assert run.score("best") == pytest.approx(done.metrics["best_eval_return_mean"])
    assert run.wall_time is not None
    assert run.steps_per_second is not None


def test_runs_are_found_below_directories_once_and_not_inside_runs(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study", seeds=2)
    make_run(study / "sac" / "seed0" / "checkpoints" / "inner")
    make_run(study / ".hidden.tmp")
    (study / "again").symlink_to(study)
    found = load_runs([study, study / "sac", study / "td3" / "seed1"])
    assert sorted(str(run.path.relative_to(study)) for run in found) == ["sac/seed0", "sac/seed1", "td3/seed0", "td3/seed1"]


@pytest.mark.parametrize("command", ["report", "compare"])
def test_paths_without_runs_are_refused(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (run / "checkpoints").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, message in (
        ("nowhere", "nowhere does not exist"),
        ("empty", "no runs in or below"),
        ("file", "no runs in or below"),
        ("run/checkpoints", f"it is inside the run {run}: give that"),
        ("x" * 5000, "cannot be read"),
    ):
        assert main([command, str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def damage(run: Path, name: str, content: str) -> Path:
    (run / name).write_text(content)
    return run


BROKEN = [
    ("config.yaml", "algo: [", "is not valid YAML"),
    ("config.yaml", "- 1", "must hold a mapping"),
    ("config.yaml", "env_id: x", "names no algorithm"),
    ("metadata.json", "{", "cannot be read"),
    ("metadata.json", "[]", "must hold an object"),
    ("evaluations.csv", "step,episode,seed,return,length\n10,0,0,nan,5\n", "has the return nan at step 10 in line 2"),
    ("evaluations.csv", "step,return\nten,1\n", "has no step and return in line 2"),
    ("evaluations.csv", "something else\n1\n", "has no step and return in line 2"),
    ("evaluations.csv", "step,episode,seed,return,length\n", "finished, but never evaluated"),
]


def test_broken_runs_are_listed_and_do_not_count(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study")
    broken = [
        damage(make_run(study / f"broken{number}", seed=9 + number), name, content)
        for number, (name, content, _) in enumerate(BROKEN)
    ]
    evidence = gather_evidence([study])
    found = {run.path: run for run in evidence.runs}
    html = page(tmp_path, study)
    for path, (_, _, problem) in zip(broken, BROKEN, strict=True):
        assert not found[path].counts
        assert problem in (found[path].problem or ""), path
        assert f">{path.name}</a>" in html
    assert sum(run.counts for run in evidence.runs) == 6
    assert "9 of 15 runs do not count in scores" in html


def test_a_report_of_nothing_but_broken_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = damage(make_run(tmp_path / "run"), "config.yaml", "[")
    assert "No run is finished and evaluated" in page(tmp_path, run)
    assert main(["compare", str(run)]) == 2
    assert "can be read" in capsys.readouterr().err


def test_a_run_in_progress_may_be_in_the_middle_of_a_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", status="running")
    for name, rest in (("evaluations.csv", "300,0,0,-1"), ("metrics.jsonl", '{"step": 30')):
        with (run / name).open("a") as file:
            file.write(rest)
    (found,) = load_runs([run])
    assert found.steps.tolist() == [100, 200]
    assert found.problem == "running, last evaluated at step 200"


# -- groups and curves ---------------------------------------------------------------------------------------------------


def test_seeds_are_one_group_and_settings_are_several(tmp_path: Path) -> None:
    for seed in (1, 2):
        bookkeeping = {"log_interval": seed * 10, "torch_threads": seed, "device": "cpu" if seed == 1 else "auto"}
        make_run(tmp_path / f"a{seed}", seed=seed, algo_kwargs={"learning_rate": 1e-3, "tau": 0.005}, **bookkeeping)
        make_run(tmp_path / f"b{seed}", seed=seed, algo_kwargs={"learning_rate": 3e-4, "tau": 0.005})
        make_run(tmp_path / f"c{seed}", "td3", seed=seed)
    groups = group_runs(load_runs([tmp_path]))
    assert [(group.label, len(group.counted)) for group in groups] == [
        ("sac learning_rate=0.0003", 2),
        ("sac learning_rate=0.001", 2),
        ("td3", 2),
    ]


def test_settings_of_other_environments_do_not_lengthen_a_label(tmp_path: Path) -> None:
    make_run(tmp_path / "a", env_id="A-v1", algo_kwargs={"learning_rate": 1e-3})
    make_run(tmp_path / "b", env_id="B-v1", algo_kwargs={"learning_rate": 1e-4})
    assert [group.label for group in group_runs(load_runs([tmp_path]))] == ["sac", "sac"]


def test_long_labels_stay_apart(tmp_path: Path) -> None:
    for number in range(3):
        make_run(tmp_path / str(number), algo_kwargs={"note": f"{'x' * 40}{number}{'y' * 40}"})
    labels = [group.label for group in group_runs(load_runs([tmp_path]))]
    assert len(set(labels)) == 3
    assert max(map(len, labels)) <= 80


def test_data_is_part_of_the_task(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "iql", dataset={"kind": "npz", "path": "/data/medium.npz"})
    make_run(tmp_path / "b", "iql", dataset={"kind": "minari", "path": "mujoco/hopper/expert-v0"})
    make_run(tmp_path / "c", "sac")
    make_run(tmp_path / "d", "bc", None, returns=(), dataset={"kind": "random"})
    assert [group.task for group in group_runs(load_runs([tmp_path]))] == [
        "Pendulum-v1",
        "Pendulum-v1 (medium)",
        "Pendulum-v1 (mujoco/hopper/expert-v0)",
        "no environment (random data)",
    ]
    page(tmp_path, tmp_path)


def test_the_same_seed_twice_counts_once(tmp_path: Path) -> None:
    make_run(tmp_path / "first", seed=1)
    make_run(tmp_path / "second", seed=1)
    make_run(tmp_path / "third", seed=2)
    (group,) = group_runs(load_runs([tmp_path]))
    assert [run.path.name for run in group.counted] == ["second", "third"]
    assert group.runs[0].problem == "the same setting and seed as second, which counts"


def test_curves_are_aligned_within_their_range_only(tmp_path: Path) -> None:
    make_run(tmp_path / "a", returns=(0.0, 10.0, 20.0), seed=1)
    make_run(tmp_path / "b", returns=(100.0, 200.0), seed=2, interval=150)
    steps, values = align_curves(load_runs([tmp_path / "a", tmp_path / "b"]))
    assert steps.tolist() == [100, 150, 200, 300]
    np.testing.assert_allclose(values, [[0.0, 5.0, 10.0, 20.0], [np.nan, 100.0, 100.0 + 100 / 3, 200.0]])
    assert align_curves([])[1].size == 0


# -- the page ------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags, addresses and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("href", "src", "xlink:href", "data-moving"):
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)


@pytest.fixture(scope="module")
def my_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("page")
    return page(directory, make_study(directory / "study"), title="My study")


def test_the_page_is_whole_and_needs_nothing_else(my_page: str) -> None:
    html, found = my_page, Page(my_page)
    assert "<title>My study</title>" in html
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html
    assert not {"iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert all(address.startswith(("data:", "./", "#")) for address in found.addresses), found.addresses
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    assert len(found.ids) == len(set(found.ids))
    assert found.tags.count("script") == 1
    assert "./study/sac/seed0/" in found.addresses
    assert html.count('class="plot"') == 1 + 3 + 1  # curves, three statistics on one environment, a profile


def test_colours_follow_the_page(my_page: str) -> None:
    plots = re.findall(r'<svg viewBox[^>]*class="plot".*?</svg>', my_page, re.DOTALL)
    assert len(plots) == 5
    for plot in plots:
        assert "currentColor" in plot
        assert "var(--s0)" in plot
        assert not re.search(r"#[0-9a-f]{6}\b", plot), "a colour that would not change in dark mode"


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study")
    first, second = (re.sub(r"Made [^<]*? UTC", "", page(tmp_path, study)) for _ in range(2))
    assert first == second


HOSTILE = "<script>alert(1)</script>$x^{\"'&--><img src=x onerror=alert(2)>"


def test_names_and_settings_are_text_not_markup(tmp_path: Path) -> None:
    for seed in (1, 2):
        for value in (HOSTILE, "$\\frac{"):
            name = f"javascript:alert({seed}){len(value)}"
            make_run(tmp_path / name, HOSTILE, f"{HOSTILE}-v1", seed, (1.0, seed * len(value)), algo_kwargs={HOSTILE: value})
    (tmp_path / "refs.yaml").write_text(dump_yaml({f"{HOSTILE}-v1": {HOSTILE: {"score": 1, "source": HOSTILE}}}))
    html = page(tmp_path, tmp_path, title=HOSTILE, references=tmp_path / "refs.yaml")
    found = Page(html)
    assert found.tags.count("script") == 1
    assert not found.handlers
    assert "img" not in found.tags
    assert all(not address.lower().startswith("javascript") for address in found.addresses)
    assert sum(address.startswith("./javascript%3Aalert%28") for address in found.addresses) == 4
    assert "alert(1)&lt;/script&gt;" in html


def test_an_unfinished_run_is_drawn_but_not_scored(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=1, returns=(0.0, 1.0, 2.0, 3.0))
    make_run(tmp_path / "b", seed=2, returns=(0.0, 1.0), status="failed", total_timesteps=400)
    evidence = gather_evidence([tmp_path])
    (found,) = evidence.groups
    assert found.last is not None
    assert found.last.scores == [3.0]
    assert found.last.iqm.note == "no interval: one seed"
    html = page(tmp_path, tmp_path)
    assert "failed, last evaluated at step 200" in html
    assert "one seed, no interval" in html
    assert "1<small> of 2</small>" in html


def test_runs_without_evaluations_are_no_error(tmp_path: Path) -> None:
    make_run(tmp_path / "a", returns=())
    html = page(tmp_path, tmp_path)
    assert "No evaluations." in html
    assert "finished, but never evaluated" in html


def test_aggregates_over_the_tasks_that_groups_share(tmp_path: Path) -> None:
    for seed in range(3):
        for number, env_id in enumerate(("A-v1", "B-v1")):
            for rank, algo in enumerate(("sac", "td3")):
                make_run(tmp_path / f"{algo}{env_id}{seed}", algo, env_id, seed, (0.0, 100.0 * number + 10 * rank + seed))
        make_run(tmp_path / f"ddpg{seed}", "ddpg", "A-v1", seed, (0.0, 5.0 + seed))
        make_run(tmp_path / f"dqn{seed}", "dqn", "C-v1", seed, (0.0, 5.0 + seed))
    (aggregate,) = gather_evidence([tmp_path]).aggregates
    assert (aggregate.tasks, aggregate.labels, aggregate.left_out) == (["A-v1", "B-v1"], ["sac", "td3"], ["ddpg"])
    assert aggregate.scores["td3"]["B-v1"].tolist() == pytest.approx([10 / 12, 11 / 12, 1.0])
    assert set(aggregate.estimates) == {"iqm", "median", "mean", "optimality_gap"}
    assert aggregate.improvement[("td3", "sac")][:3] == (1.0, 1.0, 1.0)
    assert "lowest" in aggregate.scale


def test_many_groups_are_drawn_without_a_table_of_all_pairs(tmp_path: Path) -> None:
    for number in range(14):
        make_run(tmp_path / f"run{number}", returns=(0.0, number), algo_kwargs={"learning_rate": 0.001 * number})
    assert not gather_evidence([tmp_path]).aggregates[0].improvement
    html = page(tmp_path, tmp_path)
    assert "Too many groups for a table of all pairs" in html
    assert "var(--s10)" not in html, "colours repeat after the last one"


def test_known_reference_returns_are_the_scale(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path / f"a{seed}", "sac", "Hopper-v5", seed, (3234.3,))
        make_run(tmp_path / f"b{seed}", "td3", "Hopper-v5", seed, (-20.272305,))
    (aggregate,) = gather_evidence([tmp_path]).aggregates
    assert "D4RL" in aggregate.scale
    assert aggregate.estimates["iqm"]["sac"].value == pytest.approx(1.0)
    assert aggregate.estimates["iqm"]["td3"].value == pytest.approx(0.0)


def test_equal_scores_have_no_scale_and_it_is_said(tmp_path: Path) -> None:
    for seed in range(2):
        for algo in ("sac", "td3"):
            make_run(tmp_path / f"{algo}{seed}", algo, seed=seed, returns=(7.0,))
    evidence = gather_evidence([tmp_path])
    assert not evidence.aggregates
    assert any("no scale to aggregate" in note for note in evidence.notes)
    page(tmp_path, tmp_path)


def test_references_are_drawn_and_listed(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study")
    references = tmp_path / "refs.yaml"
    references.write_text("Pendulum-v1:\n  sac: {score: -150, source: 'a paper'}\nAnt-v5:\n  sac: {score: 1, source: x}\n")
    html = page(tmp_path, study, references=references)
    assert "a paper" in html
    assert "References for Ant-v5: no such environment here." in html
    assert gather_evidence([study], references=read_references(references)).groups[0].reference == (-150.0, "a paper")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Pendulum-v1: 3", "must map algorithms"),
        ("Pendulum-v1: {sac: -150}", "must have score and source"),
        ("Pendulum-v1: {sac: {score: -150}}", "must have score and source"),
        ("Pendulum-v1: {sac: {score: high, source: x}}", "score must be a finite number, got 'high'"),
        ("Pendulum-v1: {sac: {score: .nan, source: x}}", "score must be a finite number"),
        ("[", "is not valid YAML"),
    ],
)
def test_bad_references_are_refused(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_study(tmp_path / "study")
    (tmp_path / "refs.yaml").write_text(text)
    arguments = ["report", str(study), "-o", str(tmp_path / "r.html"), "--references", str(tmp_path / "refs.yaml")]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_the_command_tells_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, target = make_study(tmp_path / "study"), tmp_path / "deep" / "er" / "report.html"
    assert main(["report", str(study), "-o", str(target), "--no-video"]) == 0
    out = capsys.readouterr().out
    assert "6 of 6 runs counted, in 2 groups" in out
    assert str(target) in out
    assert main(["report", str(study), "-o", str(target), "--no-video", "--json"]) == 0
    found = last_json(capsys)
    assert found["report"] == str(target)
    assert [group["label"] for group in found["groups"]] == ["sac", "td3"]
    assert found["groups"][0]["last"]["iqm"]["value"] == pytest.approx(-249.0)
    assert found["aggregates"][0]["tasks"] == ["Pendulum-v1"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_study(tmp_path / "study")
    assert main(["report", str(study), "-o", str(tmp_path), "--no-video"]) == 2
    assert "is a directory: name the file" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["report", str(study), "-o", str(tmp_path / "file" / "r.html"), "--no-video"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["report", str(make_study(tmp_path / "study")), "-o", str(tmp_path / "r.html")]) == 2
    assert 'a report needs matplotlib and jinja2: pip install "rl-training[report]"' in capsys.readouterr().err


def test_the_command_line_and_reading_runs_stay_light() -> None:
    heavy = "{'matplotlib', 'jinja2', 'torch', 'numpy'}"
    code = f"import sys, rl_training.cli; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    heavy = "{'matplotlib', 'jinja2', 'torch'}"
    code = (
        f"import sys, rl_training.studies.curves as c, rl_training.studies.statistics; assert not {heavy} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- animation -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of an environment that can be drawn."""
    return train(tiny_config("sac", tmp_path_factory.mktemp("painted"), env_id="test_report:PaintedEnv")).run_dir


def test_the_best_agent_is_shown_at_play_or_a_note_says_why_not(painted: Path, tmp_path: Path) -> None:
    train(tiny_config("sac", tmp_path / "runs", env_id="support:CountingEnv", total_timesteps=40))
    make_run(tmp_path / "runs" / "without_a_checkpoint")
    write_report([painted, tmp_path / "runs"], tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text()
    assert html.count("No animation: ") == 2  # one cannot be drawn, one has nothing to play
    (moving,) = re.findall(r'data-moving="data:image/(?:webp|gif);base64,([^"]+)"', html)
    assert 500 < len(moving) < 2_000_000
    assert "sac, seed 7, return 30.0" in html


def test_code_of_the_user_is_not_imported_if_that_is_forbidden(painted: Path, tmp_path: Path) -> None:
    assert main(["report", str(painted), "-o", str(tmp_path / "report.html"), "--no-user-code"]) == 0
    assert "user code is switched off" in (tmp_path / "report.html").read_text()


# -- compare -------------------------------------------------------------------------------------------------------------


def test_compare_two_studies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = make_study(tmp_path / "one", algos=("sac",)), tmp_path / "two"
    for seed in range(3):
        make_run(two / f"seed{seed}", "td3", seed=seed, returns=(0.0, -249.5 + seed))
    assert main(["compare", str(one), str(two)]) == 0
    out = capsys.readouterr().out
    # -250, -249, -248 against -249.5, -248.5, -247.5: three of nine pairs are won
    assert f"Pendulum-v1: sac ({one}) scores higher than td3 ({two}) with probability 0.33, 95 % interval" in out
    assert "3 and 3 seeds; which is better remains open" in out
    assert "Fewer than 5 seeds" in out
    assert main(["compare", str(one), str(two), "--json"]) == 0
    found = last_json(capsys)
    assert found["environments"][0]["groups"][0]["mean"] == pytest.approx(-249.0)
    assert found["findings"][0]["probability"]["value"] == pytest.approx(1 / 3)
    assert main(["compare", str(one), str(two), "--metric", "best", "--json"]) == 0
    assert last_json(capsys)["findings"][0]["probability"]["value"] == 0.0
    assert main(["compare", str(one), str(two), "--metric", "first"]) == 2


def test_compare_over_several_environments(tmp_path: Path) -> None:
    for seed in range(2):
        for env_id, gain in (("A-v1", 10.0), ("B-v1", -10.0)):
            make_run(tmp_path / "one" / f"{env_id}{seed}", env_id=env_id, seed=seed, returns=(gain + seed,))
            make_run(tmp_path / "two" / f"{env_id}{seed}", env_id=env_id, seed=seed, returns=(0.0 + seed,))
    found = compare([tmp_path / "one", tmp_path / "two"])
    assert [(finding.tasks, finding.probability.value) for finding in found.findings] == [
        (["A-v1"], 1.0),
        (["B-v1"], 0.0),
        (["A-v1", "B-v1"], 0.5),
    ]
    assert "over 2 environments" in found.findings[-1].sentence()


def test_compare_the_groups_of_one_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(make_study(tmp_path / "study"))]) == 0
    assert "Pendulum-v1: sac scores higher than td3 with probability 0.00" in capsys.readouterr().out


def test_compare_tells_settings_of_the_sides_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "one", algo_kwargs={"learning_rate": 1e-3})
    make_run(tmp_path / "two", algo_kwargs={"learning_rate": 1e-4})
    (finding,) = compare([tmp_path / "one", tmp_path / "two"]).findings
    assert finding.first.startswith("sac learning_rate=0.001 (")
    assert finding.sentence().endswith("(no interval: one seed).")


@pytest.mark.parametrize(
    ("arrange", "arguments", "message"),
    [
        (lambda at: make_run(at / "b", env_id="Ant-v5"), ["a", "b"], "no environment in common"),
        (lambda at: None, ["a"], "give a second run or study"),
        (lambda at: None, ["a", "."], "belongs to both"),
        (lambda at: None, ["a", "a"], "belongs to both"),
        (lambda at: make_run(at / "b", status="interrupted"), ["a", "b"], "has no finished run with an evaluation"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arrange: Any, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a")
    arrange(tmp_path)
    assert main(["compare", *(str(tmp_path / name) for name in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_names_in_brackets_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "[red]a", seed=1)
    make_run(tmp_path / "[/b]", seed=1, returns=(3.0,))
    assert main(["compare", str(tmp_path / "[red]a"), str(tmp_path / "[/b]")]) == 0
    assert "[/b]" in capsys.readouterr().out


def test_python_errors_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="give a run directory"):
        load_runs([])
