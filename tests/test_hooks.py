"""Plugins: how they are found, made, refused and merged; and that observers cannot do harm."""

from __future__ import annotations

import asyncio
import sys
from textwrap import dedent

import pytest
from sqlalchemy import text

from runqueue import (
    AsyncRunQueue,
    ClaimOrder,
    KeepLast,
    PluginError,
    RetryDelay,
    RunQueue,
    Settings,
    TenantPolicy,
    Worker,
    hookimpl,
)
from runqueue.hooks.manager import Hooks
from runqueue.schema.tables import tables

T = tables("runqueue")


class Order:
    @hookimpl
    def runqueue_claim_order(self, runs):
        return ClaimOrder((runs.c.id,))


class OtherOrder(Order):
    pass


class Tenants:
    @hookimpl
    def runqueue_tenant_policy(self, tenants):
        return TenantPolicy(tenants.c.weight)


class OtherTenants(Tenants):
    pass


class Store:
    @hookimpl
    def runqueue_checkpoint_store(self):
        return KeepLast(1, 10)


class OtherStore(Store):
    pass


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a distribution with entry points, and a module `name` with a source."""

    def install(distribution, points, **modules):
        folder = tmp_path / distribution
        info = folder / f"{distribution}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        lines = "\n".join(f"{name} = {value}" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[runqueue]\n{lines}\n")
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(dedent(source))
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(str(folder))

    return install


GOOD = """
    from runqueue import RetryDelay, hookimpl

    class Plugin:
        def __init__(self, seconds=1, word="x"):
            if seconds < 0:
                raise ValueError("seconds must not be negative")
            self.seconds = seconds

        @hookimpl
        def runqueue_retry_delay(self, failure):
            return RetryDelay(self.seconds, "fixed")
"""


def test_installed_plugins_do_nothing_until_they_are_named(install):
    install("quiet", {"quiet": "quiet_plugin"}, quiet_plugin="raise RuntimeError('imported')")
    assert "quiet" not in {x.name for x in Hooks().plugins()}
    with pytest.raises(PluginError, match=r"'quiet' \(quiet_plugin\) cannot be imported: RuntimeError\('imported'\)"):
        Hooks(["quiet"])


def test_a_class_is_made_with_its_options(install):
    install("good", {"good": "good_plugin:Plugin"}, good_plugin=GOOD)
    found = Hooks(["good"], {"good": {"seconds": 7}}).plugins()[-1]
    assert (found.name, found.version, found.source) == ("good", "1.2", "good")
    assert (found.hooks, found.options) == (("runqueue_retry_delay",), {"seconds": 7})


@pytest.mark.parametrize(
    ("plugins", "options", "message"),
    [
        (["goood"], {}, r"no plugin 'goood' is installed; did you mean 'good'\? \(installed: .*good"),
        (["good", "good"], {}, "'good' is named twice"),
        (["good"], {"good": {"second": 1}}, r"no option 'second'; did you mean 'seconds'\? \(options: seconds, word\)"),
        (["good"], {"good": {"seconds": -1}}, "'good' refuses its options: seconds must not be negative"),
        (["good"], {"god": {}}, r"no plugin 'god' is in use; did you mean 'good'\?"),
        ([], {"aging": {}}, r"no plugin 'aging' is in use"),
        (["aging"], {"aging": {"x": 1}}, "'aging' takes no options, but was given x"),
        (["broken"], {}, r"'broken' \(nowhere_at_all\) cannot be imported: ModuleNotFoundError"),
        (["missing"], {}, r"'missing' \(good_plugin:Nothing\) cannot be imported: AttributeError"),
        ("good", {}, "must be a list of names and objects, not the string 'good'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_the_start(install, plugins, options, message):
    points = {"good": "good_plugin:Plugin", "broken": "nowhere_at_all", "missing": "good_plugin:Nothing"}
    install("good", points, good_plugin=GOOD)
    with pytest.raises(PluginError, match=message):
        Hooks(plugins, options)


def test_a_name_that_two_distributions_bring_is_refused_with_both_names(install):
    install("one", {"twice": "good_plugin:Plugin"}, good_plugin=GOOD)
    install("two", {"twice": "good_plugin:Plugin"}, good_plugin=GOOD)
    with pytest.raises(PluginError, match=r"several distributions bring a plugin 'twice': (one, two|two, one)"):
        Hooks(["twice"])


def _plugin(name, function):
    return type("Odd", (), {name: hookimpl(function)})()


async def _async(self, failure):
    return 1.0


def _wrapper(self):
    return (yield)


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (
            _plugin("runqueue_retry_dely", lambda self, failure: 1),
            r"does not exist.*did you mean 'runqueue_retry_delay'",
        ),
        (_plugin("runqueue_retry_delay", lambda self, failures: 1), r"(?s)'Odd' cannot be used.*failures"),
        (_plugin("runqueue_retry_delay", _async), "'Odd' must implement _async without async"),
        (type("Odd", (), {"runqueue_retry_delay": hookimpl(_wrapper, wrapper=True)})(), "must not wrap"),
        (object(), "'object' implements no hook: is it marked with @hookimpl"),
    ],
    ids=["hook", "argument", "async", "wrapper", "nothing"],
)
def test_a_plugin_that_could_never_work_is_refused(plugin, message):
    with pytest.raises(PluginError, match=message):
        Hooks([plugin])


@pytest.mark.parametrize(
    "plugins",
    [(Order(), OtherOrder()), ("aging", "priority"), ("aging", Order()), (Tenants(), OtherTenants()),
     ("fairness", Tenants()), (Store(), OtherStore()), ("checkpoints", Store())],
)  # fmt: skip
def test_two_that_would_decide_the_same_are_refused(plugins):
    with pytest.raises(PluginError, match="only one plugin may implement"):
        Hooks(plugins)


def test_who_is_named_replaces_the_default():
    hooks = Hooks([Order(), Store()])
    assert hooks.claim_order(T.runs, T.rules) == ClaimOrder((T.runs.c.id,))
    assert hooks.checkpoint_store(Settings()) == KeepLast(1, 10)
    assert hooks.order_name() == "Order"


def test_retry_delays_are_asked_for_from_the_last_plugin_to_the_first():
    asked = []

    def plugin(name, answer):
        return type(name, (), {"runqueue_retry_delay": hookimpl(lambda self, failure: asked.append(name) or answer)})()

    hooks = Hooks([plugin("First", RetryDelay(1.0)), plugin("Second", None), plugin("Third", None)])
    assert hooks.retry_delay(None, Settings()).seconds == 1.0
    assert asked == ["Third", "Second", "First"]


def test_redactions_are_applied_in_the_order_of_the_configuration():
    def plugin(name):
        return type(name, (), {"runqueue_redact": hookimpl(lambda self, value: f"{value}{name}")})()

    assert Hooks([plugin("A"), plugin("B")]).redact("password=secret ", "error") == "password=[redacted] AB"


def test_a_default_can_be_left_out():
    assert Hooks(without=["redaction"]).redact("password=x", "error") == "password=x"
    with pytest.raises(PluginError, match="no plugin 'fairness' is in use"):
        Hooks(without=["fairness"])


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        ("runqueue_claim_order", "priority"),
        ("runqueue_claim_order", ClaimOrder(())),
        ("runqueue_claim_order", ClaimOrder((T.events.c.seq,))),
        ("runqueue_claim_order", ClaimOrder((T.runs.c.id,), level=T.runs.c.priority, step=T.runs.c.spent)),
        ("runqueue_tenant_policy", 5),
        ("runqueue_checkpoint_store", object()),
        ("runqueue_schema", "index"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_refused(engine, hook, answer):
    plugin = _plugin(hook, lambda self: answer)
    with pytest.raises(PluginError, match=hook):
        RunQueue(engine, plugins=[plugin]).core.indexes()


# ------------------------------------------------------------------------------------------------------- observers


class Observer:
    def __init__(self, error=None, spoil=""):
        self.seen, self.error, self.spoil = [], error, spoil

    def note(self, what, connection=None):
        self.seen.append(what)
        if self.spoil and connection is not None:
            connection.execute(text(self.spoil))
        if self.error is not None:
            raise self.error

    @hookimpl
    def runqueue_runs_enqueued(self, connection, runs):
        self.note(("enqueued", len(runs)), connection)

    @hookimpl
    def runqueue_runs_claimed(self, connection, runs):
        self.note(("claimed", len(runs)), connection)

    @hookimpl
    def runqueue_runs_finished(self, connection, runs):
        self.note(("finished", *(x.status.value for x in runs)), connection)

    @hookimpl
    def runqueue_run_started(self, run):
        self.note(("started", run.run.kind))

    @hookimpl
    def runqueue_run_ended(self, run, outcome, error):
        self.note(("ended", outcome, type(error).__name__))


class Witness(Observer):
    pass


def _handlers(queue):
    @queue.handler("fine")
    def fine(run):
        return 1

    @queue.handler("async fine")
    async def async_fine(run):
        return 1

    @queue.handler("wrong")
    def wrong(run):
        raise ValueError("no")


HARM = {
    "nothing": {},
    "exception": {"error": ValueError("observer")},
    "exit": {"error": SystemExit(3)},
    "cancelled": {"error": asyncio.CancelledError()},
    "broken transaction": {"spoil": "select 1/0"},
}


@pytest.mark.parametrize("harm", HARM)
def test_whatever_an_observer_does_the_runs_end_as_without_it(engine, policy, harm):
    observer, witness = Observer(**HARM[harm]), Witness()
    queue = RunQueue(
        engine, claim=policy, plugins=[observer, witness], settings=Settings(retry_base=0, max_attempts=1, listen=False)
    )
    _handlers(queue)
    runs = {kind: queue.enqueue(kind, tenant_id="t") for kind in ("fine", "async fine", "wrong")}
    assert Worker(queue).drain() == 3
    ends = {kind: queue.get(run.id).status.value for kind, run in runs.items()}
    assert ends == {"fine": "done", "async fine": "done", "wrong": "dead"}
    claimed = sum(x[1] for x in witness.seen if x[0] == "claimed")
    finished = sorted(y for x in witness.seen if x[0] == "finished" for y in x[1:])
    assert (claimed, finished) == (3, ["dead", "done", "done"])
    ended = sorted(x[1:] for x in witness.seen if x[0] == "ended")
    assert ended == [("done", "NoneType"), ("done", "NoneType"), ("failed", "ValueError")]
    assert len([x for x in witness.seen if x[0] == "started"]) == 3
    assert observer.seen == witness.seen or harm == "nothing" or len(observer.seen) == len(witness.seen)
    assert queue.core.ctx.hooks.errors["Witness"] == 0
    assert (queue.core.ctx.hooks.errors["Observer"] > 0) == (harm != "nothing")


def test_observers_write_in_the_transaction_that_they_observe(engine):
    class Log(Observer):
        def note(self, what, connection=None):
            if connection is not None:
                connection.execute(text("insert into log values (:what)"), {"what": what[0]})

    with engine.begin() as connection:
        connection.execute(text("create table log (what text)"))
    queue = RunQueue(engine, plugins=[Log()])

    def log():
        with engine.connect() as connection:
            return connection.execute(text("select what from log order by 1")).scalars().all()

    with engine.connect() as connection:
        connection.begin()
        queue.enqueue("k", tenant_id="t", connection=connection)
        connection.rollback()
    assert log() == []
    run = queue.enqueue("k", tenant_id="t")
    [one] = queue.claim("w")
    queue.complete(one.lease)
    queue.complete(one.lease)
    assert log() == ["claimed", "enqueued", "finished"]
    queue.cancel(queue.enqueue("k", tenant_id="t").id)
    assert log() == ["claimed", "enqueued", "enqueued", "finished", "finished"]
    assert queue.get(run.id).status == "done"


async def test_observers_work_on_the_async_queue_too(async_engine):
    observer = Observer()
    queue = AsyncRunQueue(async_engine, plugins=[observer])
    await queue.enqueue("k", tenant_id="t")
    [one] = await queue.claim("w")
    await queue.complete(one.lease)
    assert observer.seen == [("enqueued", 1), ("claimed", 1), ("finished", "done")]


def test_a_deciding_plugin_that_raises_changes_nothing(engine):
    class Broken:
        @hookimpl
        def runqueue_retry_delay(self, failure):
            raise RuntimeError("undecided")

    queue = RunQueue(engine, plugins=[Broken()])
    run = queue.enqueue("k", tenant_id="t")
    [one] = queue.claim("w")
    with pytest.raises(RuntimeError, match="undecided"):
        queue.fail(one.lease, "x")
    assert queue.get(run.id).status == "leased"
    queue.complete(one.lease)


def test_a_process_that_disagrees_with_the_install_may_not_claim(engine):
    first = RunQueue(engine, plugins=["aging"])
    run = first.enqueue("k", tenant_id="t")
    assert first.claim("w", kinds=["none"]) == []
    second = RunQueue(engine)
    with pytest.raises(PluginError, match=r"'aging' orders claims, in this process 'priority'.*rules set claim_order"):
        second.claim("w")
    with pytest.raises(PluginError, match="orders claims"):
        second.check()
    assert second.enqueue("k", tenant_id="t").status == "pending"
    second.set_rule("claim_order", "priority")
    assert [x.run.id for x in second.claim("w")] == [run.id]
