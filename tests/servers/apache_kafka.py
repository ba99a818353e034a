"""A real Apache Kafka in KRaft mode: one node, or a cluster of three, on free loopback ports.

The brokers keep their defaults. What is set: node ids, listeners with their security, the log directory, and on one node
the replication factors of the internal topics, whose default of three cannot be met there. Maven fetches the jars once
into the user's cache: `python -m tests.servers.apache_kafka`.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import trustme
from confluent_kafka import ConsumerGroupTopicPartitions, ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.servers.process import ServerProcess, free_port, has_ended

USER, PASSWORD = "alice", "alice-secret"
"""Whom the SASL listeners let in."""

_POM = Path(__file__).with_name("apache-kafka.pom.xml")
_CLUSTER_ID = "aG9sZGZhc3QtdGVzdHMtMQ"
_START_SECONDS = 90.0
_ANSWER_SECONDS = 20.0
# Small and quick to start. -Xrs: SIGQUIT ends the process, as it ends the other servers.
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xrs")
_LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SETTINGS = """
process.roles=broker,controller
node.id={id}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners={listeners}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
ssl.keystore.type=PEM
ssl.keystore.location={certificate}
sasl.enabled.mechanisms=PLAIN
"""
_JAAS = (
    "listener.name.{listener}.plain.sasl.jaas.config="
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";\n'
)
_ONE_NODE = """
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class ApacheKafka:
    """Running nodes, counted from one. All processes of a test run can use and kill them."""

    def __init__(self, directory: Path, ports: Mapping[str, Sequence[int]]) -> None:
        self._directory, self._ports = directory, ports
        self._admin: Any = None
        self._former: list[Any] = []  # which may still wait for an answer

    @property
    def nodes(self) -> range:
        return range(1, len(self._ports["PLAINTEXT"]) + 1)

    @property
    def servers(self) -> str:
        return self.listener("PLAINTEXT")

    @property
    def authority(self) -> Path:
        """The certificate authority of the TLS listeners."""
        return self._directory / "authority.pem"

    @property
    def admin(self) -> Any:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        return self._admin

    def listener(self, name: str) -> str:
        """The addresses of `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports[name])

    def create(self, topic: str, partitions: int = 2, settings: Mapping[str, str] | None = None) -> None:
        """Makes a topic with a copy on each node, and waits until every partition has a leader."""
        wanted = NewTopic(topic, partitions, len(self.nodes), config=dict(settings or {}))
        self.admin.create_topics([wanted])[topic].result(_ANSWER_SECONDS)
        _until(lambda: self._leaders(topic).keys() == set(range(partitions)), f"topic {topic} has no leaders")

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads the partition, 0 while none does."""
        return self._leaders(topic).get(partition, 0)

    def coordinator(self, group: str) -> int:
        """The node that coordinates the group; waits until one does."""
        found: list[int] = []
        refused: list[str] = []

        def answers() -> bool:
            # Before the first group the brokers make the topic of offsets, which can take longer than one request may.
            try:
                # A new client, from here on for everything: one that asked before stays with the coordinator that it
                # found, and crashes the process when it asks that one for offsets (librdkafka 2.16).
                self._former.append(self._admin)
                self._admin = None
                group_state = self.admin.describe_consumer_groups([group])[group].result(_ANSWER_SECONDS)
                found.append(int(group_state.coordinator.id))
            except (KafkaException, TimeoutError) as error:
                refused.append(repr(error))
            return bool(found)

        _until(answers, f"no coordinator of {group}", lambda: "\n".join(refused[-3:]))
        return found[0]

    def elect_preferred(self) -> None:
        """Gives every partition back to its preferred leader, so that leaders and coordinators move."""
        topics = self.admin.list_topics(timeout=_ANSWER_SECONDS).topics
        partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
        self.admin.elect_leaders(ElectionType.PREFERRED, partitions).result(_ANSWER_SECONDS)

    def committed(self, topic: str, group: str) -> Mapping[int, int]:
        """The group's offset in each partition where it has one."""
        [asked] = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        found = asked.result(_ANSWER_SECONDS).topic_partitions
        return {at.partition: at.offset for at in found if at.topic == topic and at.offset >= 0}

    def ends(self, topic: str) -> Mapping[int, int]:
        """The offset after the last record of each partition."""
        asked = self.admin.list_offsets({TopicPartition(topic, n): OffsetSpec.latest() for n in self._leaders(topic)})
        return {at.partition: found.result(_ANSWER_SECONDS).offset for at, found in asked.items()}

    def start(self, *nodes: int) -> None:
        """Starts these nodes, or all that do not run, and returns when they serve clients."""
        for node in nodes or self.nodes:
            if not self._running(node):
                self._launch(node)
        _until(self._serves, "Apache Kafka did not start", self._logs)

    def kill(self, node: int) -> None:
        """SIGKILL; returns when the node is gone."""
        process = psutil.Process(int(self._path(node, "pid").read_text()))
        process.kill()
        _until(lambda: has_ended(process), f"node {node} survived SIGKILL")

    def _launch(self, node: int) -> None:
        command = [*_java(), "kafka.Kafka", str(self._path(node, "server.properties"))]
        process = ServerProcess(
            command, directory=_run_directory(), log=self._path(node, "log"), owner=_run_owner(), same_user=True
        )
        process.detach()
        self._path(node, "pid").write_text(str(process.pid))

    def _running(self, node: int) -> bool:
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            return not has_ended(psutil.Process(int(self._path(node, "pid").read_text())))
        return False

    def _serves(self) -> bool:
        for node in self.nodes:
            if not self._running(node):
                raise RuntimeError(f"node {node} of Apache Kafka ended:\n{self._logs()}")
        for port in self._ports["PLAINTEXT"]:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)):
                    return False
        with suppress(KafkaException):
            return len(self.admin.list_topics(timeout=2).brokers) == len(self.nodes)
        return False

    def _leaders(self, topic: str) -> dict[int, int]:
        found = self.admin.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic].partitions
        return {number: partition.leader for number, partition in found.items() if partition.leader > 0}

    def _logs(self) -> str:
        return "\n".join(self._path(node, "log").read_text(errors="replace")[-3000:] for node in self.nodes)

    def _path(self, node: int, name: str) -> Path:
        return self._directory / f"node-{node}" / name


@cache
def shared_kafka(nodes: int) -> ApacheKafka:
    """A cluster that all processes of this test run share; started by the first, ended with the run.

    Skips the test if Java, or the jars and Maven, are missing.
    """
    why = missing()
    if why is not None:
        pytest.skip(why)
    directory = _run_directory() / f"kafka-{nodes}"
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        known = directory / "ports.json"
        if known.exists():
            return ApacheKafka(directory, json.loads(known.read_text()))
        if (directory / "node-1").exists():
            raise RuntimeError("Apache Kafka did not start for an earlier test, whose error says why")
        _fetch()
        ports = _free_ports(nodes)
        _configure(directory, ports)
        kafka = ApacheKafka(directory, ports)
        kafka.start()
        # Makes the topic of the groups' offsets, which would be part of the first group's time otherwise.
        kafka.coordinator("any")
        known.write_text(json.dumps(ports))
        return kafka


@contextmanager
def exclusive_kafka(nodes: int) -> Iterator[ApacheKafka]:
    """A shared cluster that no other test uses during this, so that its nodes may be killed; they run again afterwards."""
    kafka = shared_kafka(nodes)
    with locked(_run_directory() / f"exclusive-{nodes}"):
        try:
            yield kafka
        finally:
            kafka.start()


def missing() -> str | None:
    """Why no Apache Kafka can run here, with the remedy; None if one can."""
    if shutil.which("java") is None:
        return "Apache Kafka needs Java 17; on Debian: apt-get install openjdk-17-jre-headless maven"
    if not _cache().exists() and shutil.which("mvn") is None:
        return "the jars of Apache Kafka need Maven to be fetched; on Debian: apt-get install maven"
    return None


def _fetch() -> Path:
    """The directory with the jars and a formatted log directory; fetched by Maven if it is not there."""
    cache = _cache()
    cache.parent.mkdir(parents=True, exist_ok=True)
    with locked(cache.parent / "lock"):
        if not cache.exists():
            scratch = Path(tempfile.mkdtemp(dir=cache.parent))
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch / 'jars'}"]
            _run("mvn", "--quiet", "--batch-mode", "--file", str(_POM), *goal)
            properties = scratch / "format.properties"
            settings = {"id": 1, "voters": "1@127.0.0.1:1", "data": scratch / "formatted", "certificate": ""}
            listeners = "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1"
            properties.write_text(_SETTINGS.format(**settings, listeners=listeners))
            tool = ["kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID, "--config", str(properties)]
            _run(*_java(scratch), *tool)
            scratch.rename(cache)
    return cache


def _free_ports(nodes: int) -> dict[str, list[int]]:
    """A port for each listener of each node. None is bound yet, so the same one could be found twice."""
    names = ("CONTROLLER", *_LISTENERS)
    found: set[int] = set()
    while len(found) < nodes * len(names):
        found.add(free_port())
    ports = iter(found)
    return {name: [next(ports) for _ in range(nodes)] for name in names}


def _configure(directory: Path, ports: Mapping[str, Sequence[int]]) -> None:
    """Writes each node's settings, its formatted log directory and the certificates."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "authority.pem"))
    certificate = directory / "server.pem"
    issued = authority.issue_cert("localhost", "127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    # Java reads keys in this form alone.
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate.write_bytes(pem + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    voters = ",".join(f"{id}@127.0.0.1:{port}" for id, port in enumerate(ports["CONTROLLER"], 1))
    for index in range(len(ports["CONTROLLER"])):
        here, id = directory / f"node-{index + 1}", index + 1
        here.mkdir()
        shutil.copytree(_cache() / "formatted", here / "data")
        meta = here / "data" / "meta.properties"
        own = urlsafe_b64encode(uuid.uuid4().bytes).decode().strip("=")
        text = re.sub(r"(?m)^node\.id=.*$", f"node.id={id}", meta.read_text())
        meta.write_text(re.sub(r"(?m)^directory\.id=.*$", f"directory.id={own}", text))
        listeners = ",".join(f"{name}://127.0.0.1:{at[index]}" for name, at in ports.items())
        settings = _SETTINGS.format(
            id=id, voters=voters, listeners=listeners, data=here / "data", certificate=certificate
        )
        for listener in ("sasl_plaintext", "sasl_ssl"):
            settings += _JAAS.format(listener=listener, user=USER, password=PASSWORD)
        (here / "server.properties").write_text(settings + (_ONE_NODE if len(ports["CONTROLLER"]) == 1 else ""))


def _java(home: Path | None = None) -> list[str]:
    log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", *_JAVA_OPTIONS, log_level, "-cp", f"{(home or _cache()) / 'jars'}/*"]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


@cache
def _cache() -> Path:
    """Where this version of Apache Kafka is kept for all test runs of this user."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "holdfast-tests" / f"apache-kafka-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:12]}"


def _run_owner() -> int:
    """The process that lives as long as the test run: pytest-xdist's own, where it is used."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


@cache
def _run_directory() -> Path:
    owner = psutil.Process(_run_owner())
    return Path(tempfile.gettempdir()) / f"holdfast-run-{owner.pid}-{round(owner.create_time())}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes out, by a lock file next to the path."""
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _until(holds: Any, problem: str, detail: Any = str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{problem} within {_START_SECONDS:g} s:\n{detail()}")
        time.sleep(0.05)


if __name__ == "__main__":
    if (problem := missing()) is not None:
        sys.exit(problem)
    print(f"Apache Kafka is in {_fetch()}")
