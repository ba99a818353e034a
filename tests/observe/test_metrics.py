"""Metrics: values that match what happened, in a format that Prometheus parses."""

import asyncio
import json
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import ConfigurationError, Context, Holdfast, RetryPolicy, immediate
from holdfast.app.telemetry import MetricsCollector
from holdfast.core.telemetry.metric import Distribution, Family, MetricKind, Sample, exposition
from holdfast.engine.telemetry.meter import OTHERS, Meter
from holdfast.interfaces.metrics.server import serve_metrics
from holdfast.metrics import metrics_app
from tests.engine.test_claim_scheduler import claimed
from tests.support.apps import MakeApp
from tests.support.builders import sql
from tests.support.worker import Log, drain, logged

Read = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Read:
    """Every sample by its name and labels, as Prometheus' own parser finds it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def at(figures: Read, figure: str, /, **labels: str) -> float:
    return figures[figure, frozenset(labels.items())]


def declare(hf: Holdfast) -> None:
    @hf.consumer("order.placed", name="billing", queue="payments", retry=RetryPolicy.fixed(0, attempts=2))
    async def billing(ctx: Context, payload: dict[str, Any]) -> None:
        if payload["n"] == 0 or ctx.attempt < 2:
            raise ConnectionError("no route")

    @hf.consumer("order.placed", name="mail")
    async def mail(payload: dict[str, Any]) -> None: ...

    @hf.consumer("order.paid", name="later")
    async def later(payload: dict[str, Any]) -> None: ...


async def test_the_figures_agree_with_what_happened_and_pass_the_parser(make_app: MakeApp) -> None:
    hf = make_app()
    declare(hf)
    await hf.publish_many([("order.placed", {"n": n}) for n in range(4)], conn=None)
    await drain(hf)
    del hf.handlers["later"]
    await hf.publish("order.paid", {}, conn=None)
    await hf.ops.pause_queue("payments", actor="ada")
    await hf.ops.trip_breaker("stripe", duration=60, actor="ada", force=True)

    figures = read(exposition(await asyncio.to_thread(MetricsCollector(hf).families)))
    billing = {"queue": "payments", "consumer": "billing"}
    mail = {"queue": "default", "consumer": "mail"}
    assert at(figures, "holdfast_claims_total", **billing) == 8
    assert at(figures, "holdfast_runs_total", **billing, operation="retry") == 4
    assert at(figures, "holdfast_runs_total", **billing, operation="deliver") == 3
    assert at(figures, "holdfast_runs_total", **billing, operation="dead_letter") == 1
    assert at(figures, "holdfast_runs_total", **mail, operation="deliver") == 4
    assert at(figures, "holdfast_runs_total", **mail, operation="dead_letter") == 0, "there before the first one"
    for name in ("holdfast_run_seconds", "holdfast_claim_to_done_seconds"):
        assert at(figures, f"{name}_count", **billing) == 8
        assert at(figures, f"{name}_bucket", **billing, le="+Inf") == 8
        assert at(figures, f"{name}_sum", **billing) > 0
    assert at(figures, "holdfast_published_total") == 5
    assert at(figures, "holdfast_alerts_total") == 0
    later = {"queue": "default", "consumer": "later"}
    assert at(figures, "holdfast_deliveries", **billing, state="failed") == 1
    assert at(figures, "holdfast_deliveries", **later, state="pending") == 1
    assert at(figures, "holdfast_deliveries_all", state="failed") == 1
    assert at(figures, "holdfast_oldest_pending_seconds", **later) >= 0
    assert at(figures, "holdfast_workers") == 0
    assert at(figures, "holdfast_paused", kind="queue", name="payments") == 1
    assert at(figures, "holdfast_circuit_open", circuit="stripe") == 1


async def test_what_a_handler_completes_is_counted_too(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'a.db'}")

    @hf.job()
    def work(ctx: Context) -> None:
        with closing(sqlite3.connect(tmp_path / "a.db")) as db, immediate(db):
            ctx.sync.complete(conn=db)

    await work.enqueue()
    await drain(hf)
    figures = read(exposition(hf.meter.families()))
    assert at(figures, "holdfast_runs_total", queue="default", consumer="work", operation="deliver") == 1
    assert at(figures, "holdfast_run_seconds_count", queue="default", consumer="work") == 1
    await hf.close()


def test_labels_hold_anything_and_the_parser_reads_it_back() -> None:
    odd = 'a"b\\c\nd{e="f"}'
    sizes = Distribution((0.1, 1.0), (1, 2, 3), 7.25)
    text = exposition(
        [
            Family("holdfast_a", MetricKind.GAUGE, "Line\nbreak and \\.", [Sample({"x": odd}, 1.5)]),
            Family("holdfast_b_seconds", MetricKind.HISTOGRAM, "Sizes.", [Sample({"x": odd}, sizes)]),
        ]
    )
    figures = read(text)
    assert at(figures, "holdfast_a", x=odd) == 1.5
    assert [at(figures, "holdfast_b_seconds_bucket", x=odd, le=le) for le in ("0.1", "1.0", "+Inf")] == [1, 3, 6]
    assert at(figures, "holdfast_b_seconds_sum", x=odd) == 7.25


def test_the_number_of_series_is_bounded() -> None:
    meter = Meter()
    for number in range(2_000):
        one = claimed(f"endpoint-{number}")
        meter.claimed([one])
        meter.settled(one, "deliver", 0.01)
    claims = next(family for family in meter.families() if family.name == "holdfast_claims_total")
    assert len(claims.samples) == 501
    rest = [sample.value for sample in claims.samples if sample.labels["consumer"] == OTHERS]
    assert rest == [1_500]


async def test_an_asgi_app_serves_them_also_without_the_store(make_app: MakeApp, dsn: str) -> None:
    hf = make_app()
    await hf.publish("order.placed", {}, conn=None)
    status, headers, body = await get(metrics_app(hf))
    assert (status, headers[b"content-type"]) == (200, b"text/plain; version=0.0.4; charset=utf-8")
    assert at(read(body), "holdfast_workers") == 0
    assert (await get(metrics_app(hf), "POST"))[0] == 405
    sql(hf.store, f"alter table {prefix(dsn)}queue rename to gone")
    try:
        _, _, body = await get(metrics_app(hf))
    finally:
        name = "holdfast.gone" if dsn.startswith("postgresql") else "gone"
        sql(hf.store, f"alter table {name} rename to {'queue' if 'postgresql' in dsn else 'holdfast_queue'}")
    assert "holdfast_workers" not in body
    assert at(read(body), "holdfast_published_total") == 1


def prefix(dsn: str) -> str:
    return "holdfast." if dsn.startswith("postgresql") else "holdfast_"


async def get(app: Any, method: str = "GET") -> tuple[int, Mapping[bytes, bytes], str]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": "/"}, None, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"].decode()


def test_a_worker_serves_them_at_its_port_and_a_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "shop.py").write_text(
        textwrap.dedent(
            f"""
            import pathlib, urllib.request
            from holdfast import Holdfast

            hf = Holdfast("sqlite:///{tmp_path / "shop.db"}")

            @hf.job()
            def look() -> None:
                with urllib.request.urlopen("http://127.0.0.1:{port}/metrics") as answer:
                    pathlib.Path("{tmp_path / "seen"}").write_bytes(answer.read())
            """
        )
    )
    code = "import shop; shop.look.sync.enqueue()"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    worker = [sys.executable, "-m", "holdfast", "worker", "--app", "shop:hf", "--until-idle"]
    worker += ["--metrics-port", str(port)]
    subprocess.run(worker, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    seen = read((tmp_path / "seen").read_text())
    assert at(seen, "holdfast_workers") == 1
    assert at(seen, "holdfast_claims_total", queue="default", consumer="look") == 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = subprocess.run([*worker[:-1], str(port)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert f"127.0.0.1:{port}" in refused.stderr


def test_the_small_server_answers_many_and_knows_one_path(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'a.db'}")
    with serve_metrics(hf, "127.0.0.1", 0) as port:
        answers: list[bytes] = []

        def ask() -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics?x=1") as answer:
                answers.append(answer.read())

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 5
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/")
        with pytest.raises(ConfigurationError, match=str(port)), serve_metrics(hf, "127.0.0.1", port):
            pass
    hf.store.close_sync()


def test_the_workers_port_says_whether_it_lives_and_is_ready(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'a.db'}")

    def ask(path: str) -> tuple[int, object]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    with serve_metrics(hf, "127.0.0.1", 0) as port:
        assert ask("/healthz") == (200, {"status": "ok"})
        assert ask("/readyz/?verbose") == (200, {"status": "ready"})
        (tmp_path / "a.db").unlink()
        assert ask("/readyz") == (503, {"status": "unready", "reason": "the store cannot be reached"})
        assert ask("/healthz") == (200, {"status": "ok"})
    hf.store.close_sync()


def test_an_observer_that_fails_is_left_out_and_nothing_else_is(log: Log) -> None:
    meter, runs = Meter(), []

    def broken(*_: object) -> None:
        raise RuntimeError("the exporter is gone")

    meter.observe(broken)
    meter.observe(lambda *run: runs.append(run))
    for _ in range(2):
        meter.settled(claimed("mail"), "deliver", 0.1)
    assert len(runs) == 2
    assert len(logged(log, "metrics observer removed")) == 1


def test_slow_clients_hold_neither_descriptors_nor_threads_of_a_worker(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'slow.db'}")
    threads = threading.active_count()
    with serve_metrics(hf, "127.0.0.1", 0) as port:
        slow = []
        for _ in range(100):
            one = socket.create_connection(("127.0.0.1", port), timeout=5)
            one.sendall(b"GET /metrics HTTP/1.1\r\nX-A: ")
            slow.append(one)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert b"holdfast_" in answer.read()
        assert threading.active_count() - threads < 20
        for one in slow:
            one.close()


def test_a_request_for_metrics_that_comes_byte_by_byte_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.interfaces.metrics.server._TIMEOUT", 0.5)
    hf = Holdfast(f"sqlite:///{tmp_path / 'slow.db'}")
    with (
        serve_metrics(hf, "127.0.0.1", 0) as port,
        socket.create_connection(("127.0.0.1", port), timeout=0.1) as slow,
    ):
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX-A: ")
        for _ in range(100):
            try:
                slow.send(b"a")
                if not slow.recv(100):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection is still open after ten seconds")
