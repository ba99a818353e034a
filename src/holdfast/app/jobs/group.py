"""Groups and chains: jobs that start together or one after another, durably, and a job that runs after them."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec

from holdfast.app.jobs.group_handle import GroupHandle
from holdfast.core.errors import ConfigurationError
from holdfast.core.group import GROUP_HEADER, OnFailure, StageInput, group_header
from holdfast.core.key import check_key
from holdfast.core.message import NewMessage
from holdfast.engine.handlers.handler import Kind
from holdfast.engine.settlement.group_stages import FIRST_CHECK, takes_summary
from holdfast.runtime.ambient_transaction import AMBIENT
from holdfast.runtime.runtime import Runtime
from holdfast.stores.groups.group import NewGroup, NewMember

if TYPE_CHECKING:
    from holdfast.app.jobs.job import Job

P = ParamSpec("P")

_UNCHANGED = object()
_LARGEST = 100_000


@dataclass(frozen=True, slots=True)
class JobCall:
    """A call of a job that is not enqueued yet: `send.call("ada", 1)`."""

    job: "Job[Any, Any]"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def then(self, job: "Job[Any, Any]", /, *args: Any, **kwargs: Any) -> "Group":
        """A chain: `job` runs after this call and gets its result as the first argument, before `args`."""
        return Group([self], chain=True).then(job, *args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """How a group is enqueued."""

    conn: Any = AMBIENT
    key: str | None = None
    on_failure: OnFailure = OnFailure.DEAD


class Group:
    """Jobs that are enqueued together, and the jobs that run after them, one after another. It is enqueued as a whole.

    >>> from holdfast import Holdfast
    >>> hf = Holdfast("sqlite:///shop.db")
    >>> @hf.job(result="1h")
    ... async def resize(image: str) -> int:
    ...     return len(image)
    >>> @hf.job(result="1h")
    ... async def report(sizes: list[int]) -> int:
    ...     return sum(sizes)
    >>> album = hf.group([resize.call("a.jpg"), resize.call("b.jpg")]).then(report)
    """

    def __init__(
        self,
        calls: Sequence[JobCall],
        *,
        chain: bool = False,
        following: Sequence[JobCall] = (),
        options: GroupOptions | None = None,
        runtime: Callable[[], Runtime] | None = None,
    ) -> None:
        self._calls, self._chain, self._following = tuple(calls), chain, tuple(following)
        self._options, self._own = options or GroupOptions(), runtime
        self.sync = SyncGroup(self)

    def then(self, job: "Job[Any, Any]", /, *args: Any, **kwargs: Any) -> "Group":
        """The same group with a job that runs once, after all jobs so far have ended.

        Its first parameter gets their results: a list in their order, or a `GroupSummary` if it is annotated so, or the
        single result in a chain. `args` and `kwargs` are its other arguments. `on_failure` says what happens if one of
        them failed.
        """
        call = JobCall(job, args, kwargs)
        before = self._following[-1:] or self._calls
        _check_following(call, before, chain=self._chain or bool(self._following))
        following = (*self._following, call)
        return Group(self._calls, chain=self._chain, following=following, options=self._options, runtime=self._own)

    def using(self, *, conn: Any = _UNCHANGED, key: str | None = None, on_failure: str | None = None) -> "Group":
        """The same group with options for `enqueue`.

        `conn` is any connection that `publish` accepts. The same `key` returns the same group. `on_failure` says what
        happens to a job that runs after others if one of them failed or was cancelled: `"dead"` makes it a dead letter,
        `"skip"` discards it, `"run"` runs it.
        """
        return Group(
            self._calls,
            chain=self._chain,
            following=self._following,
            options=group_options(self._options, conn, key, on_failure),
            runtime=self._own,
        )

    async def enqueue(self) -> GroupHandle:
        """Stores all jobs of the group in one transaction; workers run them once it is committed."""
        runtime, group = self._build()
        published = await runtime.start_group(group, self._options.conn, "group.enqueue")
        return GroupHandle(lambda: runtime, published.id, created=published.created)

    def _enqueue_sync(self) -> GroupHandle:
        runtime, group = self._build()
        published = runtime.start_group_sync(group, self._options.conn, "group.enqueue")
        return GroupHandle(lambda: runtime, published.id, created=published.created)

    @property
    def _runtime(self) -> Runtime:
        return (self._calls or self._following)[0].job._runtime if self._own is None else self._own()

    def _build(self) -> tuple[Runtime, NewGroup]:
        runtime = self._runtime
        for call in (*self._calls, *self._following):
            if call.job._runtime is not runtime:
                raise ConfigurationError(f"job {call.job.name} belongs to another app; group jobs of one app")
        if not self._calls and not self._following:
            raise ConfigurationError("the group has no jobs; give calls, such as hf.group([send.call('ada')])")
        id = runtime.producer.new_id()
        members = [*self._members(group_header(id, 0)), *self._later(id)]
        return runtime, NewGroup(id, self._label(), self._options.key, members)

    def _members(self, header: str) -> Iterator[NewMember]:
        for position, call in enumerate(self._calls):
            try:
                _, message = call.job._message(call.args, call.kwargs, {GROUP_HEADER: header})
            except Exception as error:
                error.add_note(f"This is about call {position} of the group, counted from 0. Nothing was stored.")
                raise
            yield NewMember(message, 0, position)

    def _later(self, id: Any) -> Iterator[NewMember]:
        for stage, call in enumerate(self._following, 1):
            single = self._chain or stage > 1
            # The time of its first check; the jobs before it wake it earlier. Nothing wakes it if there are none.
            delay = FIRST_CHECK if stage > 1 or self._calls else timedelta(0)
            message = _later_message(call, group_header(id, stage), delay)
            yield NewMember(
                message, stage, 0, StageInput.RESULT if single else StageInput.RESULTS, self._options.on_failure
            )

    def _label(self) -> str:
        names = list(dict.fromkeys(call.job.name for call in self._calls))
        first = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        if not self._chain:
            first = f"{len(self._calls):,} jobs of {first}" if first else "no jobs"
        return ", then ".join([first, *(call.job.name for call in self._following)])


class SyncGroup:
    """The blocking methods of a group."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def enqueue(self) -> GroupHandle:
        """`Group.enqueue`, blocking."""
        return self._group._enqueue_sync()


class Chain(Generic[P]):
    """Jobs that run one after another: `first.then(second)`. `enqueue` takes the arguments of the first."""

    def __init__(self, job: "Job[P, Any]", following: Sequence[JobCall], options: GroupOptions | None = None) -> None:
        self._job, self._following, self._options = job, tuple(following), options or GroupOptions()
        self.sync: SyncChain[P] = SyncChain(self)

    def then(self, job: "Job[Any, Any]", /, *args: Any, **kwargs: Any) -> "Chain[P]":
        """The same chain with one more job, which gets the result of the last one before these arguments."""
        call = JobCall(job, args, kwargs)
        before = self._following[-1:] or (JobCall(self._job, (), {}),)
        _check_following(call, before, chain=True)
        return Chain(self._job, (*self._following, call), self._options)

    def using(self, *, conn: Any = _UNCHANGED, key: str | None = None, on_failure: str | None = None) -> "Chain[P]":
        """The same chain with options for `enqueue`; see `Group.using`."""
        return Chain(self._job, self._following, group_options(self._options, conn, key, on_failure))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> GroupHandle:
        """Stores all jobs of the chain in one transaction; workers run them in order once it is committed."""
        return await self._group(args, kwargs).enqueue()

    def _group(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Group:
        calls = [JobCall(self._job, args, kwargs)]
        return Group(calls, chain=True, following=self._following, options=self._options)


class SyncChain(Generic[P]):
    """The blocking methods of a chain."""

    def __init__(self, chain: Chain[P]) -> None:
        self._chain = chain

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> GroupHandle:
        """`Chain.enqueue`, blocking."""
        return self._chain._group(args, kwargs)._enqueue_sync()


def new_group(runtime: Callable[[], Runtime], calls: Iterable[JobCall], on_failure: str) -> Group:
    """A group of these calls; raises `ConfigurationError` for anything that is not a call."""
    given: Any = calls
    if isinstance(given, str | bytes | dict) or not isinstance(given, Iterable):
        raise ConfigurationError(f"hf.group takes a list of calls, not {type(given).__name__}; {_CALLS}")
    taken = list(given)
    for position, call in enumerate(taken):
        if not isinstance(call, JobCall):
            raise ConfigurationError(f"item {position} of hf.group is {_described(call)}; {_CALLS}")
        where = call.job._placement
        if where.conn is not AMBIENT:
            raise ConfigurationError(
                f"call {position} of hf.group, {call.job.name}, has conn=; the group has one transaction for all: "
                "hf.group([...]).using(conn=...).enqueue()"
            )
    if len(taken) > _LARGEST:
        raise ConfigurationError(
            f"the group has {len(taken):,} jobs; the limit is {_LARGEST:,}: split it, or enqueue the jobs from a job"
        )
    return Group(taken, options=group_options(GroupOptions(), _UNCHANGED, None, on_failure), runtime=runtime)


def group_options(given: GroupOptions, conn: Any, key: str | None, on_failure: str | None) -> GroupOptions:
    """The options with changes; raises `ConfigurationError` for values that cannot work."""
    changed: dict[str, Any] = {} if conn is _UNCHANGED else {"conn": conn}
    if key is not None:
        changed["key"] = check_key(key)
    if on_failure is not None:
        try:
            changed["on_failure"] = OnFailure(on_failure)
        except ValueError:
            near = difflib.get_close_matches(str(on_failure), [one.value for one in OnFailure], n=1)
            hint = f"did you mean {near[0]!r}?" if near else "give 'run', 'skip' or 'dead'"
            raise ConfigurationError(f"on_failure is {on_failure!r}; {hint}") from None
    return replace(given, **changed)


_CALLS = "give calls of jobs, such as hf.group([send.call('ada'), send.call('bob')])"


def _described(value: object) -> str:
    if hasattr(value, "enqueue"):
        return f"{getattr(value, 'name', type(value).__name__)} without its arguments"
    return f"of type {type(value).__name__}"


def _check_following(call: JobCall, before: Sequence[JobCall], *, chain: bool) -> None:
    """Rejects a job that cannot wait for others, or that takes results that they do not keep."""
    job: Any = call.job
    if not hasattr(job, "_placement") or not hasattr(job, "handler"):
        raise ConfigurationError(
            f"then() takes a job, and this value is {_described(job)}; write .then(report, 'daily')"
        )
    handler, where = job.handler, job._placement
    if handler.kind is Kind.COMMAND:
        raise ConfigurationError(
            f"command {handler.name} cannot run after other jobs: its key is built before they have results; make it a job"
        )
    for option in ("key", "unique", "delay", "run_at", "conn"):
        if getattr(where, option) not in (None, AMBIENT):
            raise ConfigurationError(
                f"job {handler.name} runs when the jobs before it have ended; leave {option}= out, or give conn= and key= to the group"
            )
    flow = handler.flow
    if flow is not None and (flow.is_sequenced or flow.debounce is not None):
        raise ConfigurationError(
            f"job {handler.name} has order_by= or debounce=, which decides when it runs, so it cannot wait for other jobs; "
            "put a plain job after the others, which enqueues it"
        )
    parameters = handler.parameters
    if parameters.first is None:
        parameters.bind(call.args, call.kwargs)
        return
    rule = None if flow is None else flow.key
    if rule is not None and (rule.function is not None or rule.name.partition(".")[0] == parameters.first):
        raise ConfigurationError(
            f"job {handler.name} has flow control by {rule.by}, and {parameters.first} has no value before it runs; use the name "
            "of another parameter"
        )
    parameters.bind_rest(call.args, call.kwargs)
    if takes_summary(handler):
        return
    for one in before:
        if one.job.handler.result is None:
            what = "the result" if chain else "the results"
            raise ConfigurationError(
                f"{handler.name} gets {what} of the jobs before it as {parameters.first}, and {one.job.name} keeps no result; declare "
                f"{one.job.name} with result='1h', or annotate {parameters.first} as GroupSummary"
            )


def _later_message(call: JobCall, header: str, delay: timedelta) -> NewMessage:
    """The message of a job that waits: its first argument is added when it runs."""
    job: Any = call.job
    handler, runtime = job.handler, job._runtime
    parameters = handler.parameters
    bind = parameters.bind if parameters.first is None else parameters.bind_rest
    address = replace(job._placement, delay=delay).address(handler)
    message: NewMessage = runtime.producer.build(
        f"job.{handler.name}", bind(call.args, call.kwargs), headers={GROUP_HEADER: header}, addressed=[address]
    )
    if runtime.producer.validate and parameters.typed:
        parameters.check_rest(message.payload)
    return message
