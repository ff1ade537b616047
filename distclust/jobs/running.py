"""A run of a job: what came in, what is made of it, whether it may be seen.

In order: take the lock; look at the input; bring in what is new, changed or gone; make or
update the models, none of which can be seen yet; ask the gates; publish by one step; remove
what is old; leave a record. Killed anywhere, the next run takes up what is there: rows that
came in are in the store, models have their drafts, and what is published is a state that
was complete when it was named.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distclust.errors import InputError, StoreError
from distclust.jobs import record as records
from distclust.jobs.gates import judge_model, judge_rows
from distclust.jobs.intake import MARK, Intake, bring_in, check_reading, present_inventory
from distclust.jobs.inventory import Inventory, Survey, survey_input
from distclust.jobs.jobfile import Job, Model, seconds
from distclust.jobs.ledger import JobLedger, Lock, State
from distclust.jobs.published import labels_of, labels_place, model_place
from distclust.jobs.record import Outcome
from distclust.store.drafts import held_back
from distclust.store.matrix_store import MatrixStore, open_store
from distclust.store.objects import Objects, open_objects
from distclust.store.results import ResultsStore
from distclust.store.sealed import seal, unseal
from distclust.store.shelf import POINTER

if TYPE_CHECKING:
    from distclust.jobs.kinds import Before, DriftRules, Made
    from distclust.store.stored_matrix import StoredMatrix

INVENTORIES = ".distclust/job/inventories"
_FORM = "distclust-inventory"
DAY = 86400.0

Session = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class Wish:
    """What the user asks of one run, beyond the job file.

    Attributes
    ----------
    refit
        Models to be fitted anew, by name.
    accept
        Publish even if gates fail.
    """

    refit: tuple[str, ...] = ()
    accept: bool = False


@dataclass(frozen=True)
class ModelPlan:
    """What is to be done about a model: its reason to be fitted anew, if there is one."""

    name: str
    model: Model
    before: Mapping[str, Any] | None
    refit_reason: str | None

    @property
    def version(self) -> str | None:
        """Id of the published version."""
        return None if self.before is None else str(self.before["version"])

    @property
    def is_settled(self) -> bool:
        """Whether only new rows could be a reason to do anything."""
        return self.before is not None and self.refit_reason is None

    def what(self, has_new_rows: bool) -> str:
        """Return in words what a run would do."""
        from distclust.jobs.kinds import KINDS, Asked

        parameters, is_first = self.model.parameters, self.before is None
        asked = Asked(parameters, is_first, self.drift_rules(), self.refit_reason)
        return KINDS[self.model.kind].plan(asked, has_new_rows)

    def drift_rules(self) -> DriftRules:
        """Return when the model is fitted anew for what its rows say."""
        from distclust.jobs.kinds import DriftRules

        return DriftRules(self.model.refit.drift, self.model.refit.share)


@dataclass
class Progress:
    """What a run has found so far; the record is made of it."""

    survey: Survey | None = None
    intake: Intake | None = None
    rows: records.RowCounts | None = None
    generation: tuple[int | None, int | None] = (None, None)
    models: list[records.Model] = field(default_factory=list)
    gates: list[records.Gate] = field(default_factory=list)
    state: State | None = None
    pruned: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Keep how long something took."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.monotonic() - begun

    @property
    def passed(self) -> bool:
        """Whether all gates that were asked let the version through."""
        return all(gate.passed for gate in self.gates)


class Runner:
    """One run of a job, from the lock to the pointer.

    Attributes
    ----------
    job, wish
        What is to be done.
    progress
        What was found and done.
    """

    def __init__(self, job: Job, wish: Wish, session: Session) -> None:
        self.job = job
        self.wish = wish
        self.progress = Progress()
        self._session = session
        self._objects: Objects = open_objects(job.out)

    def carry_out(self, lock: Lock) -> Outcome:
        """Do what is needed; return the outcome in a word or two.

        Raises
        ------
        ConflictError
            If another run took the lock over.
        """
        if lock.cut_off is not None:
            self.progress.notes.append(f"run {lock.cut_off} before this one was cut off")
            with self.progress.stage("finishing the run before"):
                self._follow(lock.published)
        published = lock.published
        head = find_store(self.job)
        with self.progress.stage("looking at the input"):
            survey = self.look(head)
        plans = plan_models(self.job, self.wish, published)
        if survey is not None and survey.is_quiet and survey.touched and head is not None:
            self._keep_inventory(survey.refreshed(self._inventory_of(head)))
        if _is_up_to_date(head, survey, plans, published):
            self._count_rows(head, published)
            return "nothing new"
        lock.check()
        with self._session():
            store = self._bring_in(survey, head)
            self._count_rows(store, published)
            if _is_up_to_date(store, None, plans, published):
                return "nothing new"  # files changed, and gave the same rows
            self._judge_rows(store, published)
            if not self._may_go_on():
                return "gates failed"
            made = self._make_models(store, plans, published, lock)
        if not self._may_go_on():
            return "gates failed"
        lock.check()
        with self.progress.stage("publishing"):
            facts = {plan.name: _facts(plan, made[plan.name]) for plan in plans}
            place = _below(self.job.store, self.job.out)
            rows = store.generation, store.fingerprint
            state = lock.publish(place, *rows, facts, self._retired(published))
            self.progress.state = state
            self._follow(state)
        with self.progress.stage("removing what is old"):
            self._prune(state, store)
        return "published"

    def _may_go_on(self) -> bool:
        return self.progress.passed or self.wish.accept

    # ---- rows -----------------------------------------------------------------------------

    def look(self, head: MatrixStore | None) -> Survey | None:
        """Look at the input; None if the store is kept by somebody else."""
        if not self.job.source:
            return None
        known = None
        if head is not None:
            known = self._inventory_of(head)
            check_reading(known, self.job.input.reading, f"{self.job.path}: input.reading")
            _check_storing(head, self.job)
        form = self.job.input.reading.get("format")
        where = f"{self.job.path}: input.source"
        survey = survey_input(list(self.job.source), known, where=where, form=form)
        self.progress.survey = survey
        return survey

    def _inventory_of(self, store: MatrixStore) -> Inventory:
        """Return what the input was when the present generation of the store was made."""
        key = f"{INVENTORIES}/{_own_inventory(self.job, store)}.json"
        content = unseal(self._objects.read(key), _FORM, self._objects.where(key))
        return Inventory.from_json(content, self._objects.where(key))

    def _keep_inventory(self, inventory: Inventory) -> dict[str, Any]:
        """Store what the input is; return what the generation says about it."""
        document = seal(_FORM, inventory.to_json())
        self._objects.write(f"{INVENTORIES}/{inventory.digest}.json", document)
        return {"job": self.job.name, "duplicates": self.job.input.duplicates}

    def _bring_in(self, survey: Survey | None, head: MatrixStore | None) -> MatrixStore:
        if survey is None:
            assert head is not None, "a store that is only read is there"
            return head
        if head is not None and survey.is_quiet:
            return head
        with self.progress.stage("bringing rows in"):
            intake = bring_in(
                self.job.store,
                survey,
                None if head is None else self._inventory_of(head),
                dict(self.job.input.reading),
                layout=self.job.input.layout,
                storage=self.job.input.storage,
                duplicates=self.job.input.duplicates,
                keep=self._keep_inventory,
            )
        self.progress.intake = intake
        self.progress.notes += intake.notes
        return intake.store

    def _count_rows(self, store: MatrixStore | None, published: State | None) -> None:
        assert store is not None, "there is a store by now"
        after: Any = store.matrix()
        before = None if published is None else self._rows_of(published)
        n_before = 0 if before is None else before.shape[0]
        n_kept = 0 if before is None else _count_common(before, after)
        n_changed = 0 if self.progress.intake is None else self.progress.intake.n_changed
        n_changed = min(n_changed, n_before - n_kept)
        self.progress.rows = records.RowCounts(
            before=n_before,
            after=after.shape[0],
            added=after.shape[0] - n_kept - n_changed,
            changed=n_changed,
            deleted=n_before - n_kept - n_changed,
        )
        generation = None if published is None else published.generation
        self.progress.generation = (generation, store.generation)

    def _rows_of(self, state: State) -> StoredMatrix:
        """Return the rows that the published models were made of."""
        matrix: Any = open_store(self.job.store, state.generation).matrix()
        if matrix.fingerprint != state.fingerprint:
            expected = f"generation {state.generation} as it was published"
            hint = "Restore it, or name another place for results (out) to start over."
            raise StoreError(self.job.store, expected, "other rows", hint)
        return matrix  # type: ignore[no-any-return]

    def _judge_rows(self, store: MatrixStore, published: State | None) -> None:
        before = None if published is None else self._rows_of(published).columns
        assert self.progress.rows is not None, "rows were counted"
        self.progress.gates += judge_rows(self.job.gates, self.progress.rows, before, store.columns)

    # ---- models ---------------------------------------------------------------------------

    def _make_models(
        self,
        store: MatrixStore,
        plans: Sequence[ModelPlan],
        published: State | None,
        lock: Lock,
    ) -> dict[str, Made]:
        from distclust.jobs.kinds import KINDS, Request

        made: dict[str, Made] = {}
        with contextlib.ExitStack() as held:
            matrix: Any = held.enter_context(store.reading())
            rows_before = None
            if published is not None:
                rows_before = self._rows_of(published)
                held.enter_context(rows_before.held())
            held.enter_context(held_back())
            for plan in plans:
                begun = time.monotonic()
                request = Request(
                    name=plan.name,
                    kind=plan.model.kind,
                    parameters=plan.model.parameters,
                    seed=plan.model.seed,
                    place=model_place(self.job.out, plan.name),
                    matrix=matrix,
                    before=_before(plan, rows_before),
                    drift=plan.drift_rules(),
                    refit_reason=plan.refit_reason,
                )
                with self.progress.stage(plan.name):
                    made[plan.name] = KINDS[plan.model.kind].make(request)
                    self._note_model(plan, made[plan.name], rows_before, matrix, begun)
                lock.check()
        return made

    def _note_model(
        self,
        plan: ModelPlan,
        made: Made,
        rows_before: StoredMatrix | None,
        rows_after: StoredMatrix,
        begun: float,
    ) -> None:
        """Judge a model and keep what there is to say about it."""
        figures = records.Figures(after=made.metrics)
        known = None
        if plan.before is not None:
            results = ResultsStore(model_place(self.job.out, plan.name))
            known = results.get(plan.before["version"]).metrics
            figures = records.Figures(known, made.metrics)
        n_rows = rows_after.shape[0]
        self.progress.gates += judge_model(self.job.gates, plan.name, n_rows, known, made.metrics)
        model = records.Model(
            name=plan.name,
            kind=plan.model.kind,
            action=made.action,
            reason=made.reason,
            version=records.Versions(plan.version, made.version),
            metrics=figures,
            drift=made.drift,
            clusters=self._trace(plan, made, rows_before, rows_after),
            seconds=time.monotonic() - begun,
        )
        self.progress.models.append(model)

    def _trace(
        self,
        plan: ModelPlan,
        made: Made,
        rows_before: StoredMatrix | None,
        rows_after: StoredMatrix,
    ) -> dict[str, Any] | None:
        """Return what became of the clusters of a model, if it has any."""
        from distclust.jobs.lineage import trace_clusters
        from distclust.jobs.overlaps import Labelled

        if plan.before is None or rows_before is None:
            return None
        old = labels_of(self.job.out, plan.name, plan.before)
        new = labels_of(self.job.out, plan.name, _facts(plan, made))
        if old is None or new is None:
            return None
        return trace_clusters(Labelled(old, rows_before), Labelled(new, rows_after)).to_json()

    # ---- afterwards -----------------------------------------------------------------------

    def _follow(self, state: State | None) -> None:
        """Let every model's own pointer follow the job's; nothing if it has."""
        for name, facts in ({} if state is None else state.models).items():
            ResultsStore(model_place(self.job.out, name)).release(facts["version"])
            if facts["labels_version"] is not None:
                ResultsStore(labels_place(self.job.out, name)).release(facts["labels_version"])

    def _prune(self, state: State, store: MatrixStore) -> None:
        """Remove what the keep rules do not keep; the published state always stays."""
        keep, age = self.job.keep.versions, self.job.keep.days * DAY
        removed: dict[str, Any] = {"versions": 0, "generations": 0}
        for name in self.job.models:
            for place in (model_place, labels_place):
                results = ResultsStore(place(self.job.out, name))
                if results.current() is not None:
                    swept = results.gc(keep=keep, older_than=age, grace=max(age, DAY))
                    removed["versions"] += len(swept.versions) + len(swept.drafts)
        if self.job.source:
            oldest = min([*state.earlier, state.generation][-keep:])
            numbers = [info.number for info in store.generations()]
            n_kept = sum(number >= oldest for number in numbers)
            gone = store.gc(keep=max(1, n_kept), older_than=age, grace=max(age, DAY))
            removed["generations"] = len(gone.generations)
            self._prune_inventories(store)
        removed["models"] = self._prune_models(state)
        self.progress.pruned = removed

    def _retired(self, published: State | None) -> list[str]:
        """Return the models that the job had and has no more, as far as they are still there."""
        known = {} if published is None else {**published.retired, **published.models}
        gone = [name for name in known if name not in self.job.models]
        return [name for name in gone if self._places_of(name)]

    def _places_of(self, name: str) -> list[str]:
        """Return where something of a model lies."""
        places = [place(self.job.out, name) for place in (model_place, labels_place)]
        return [each for each in places if self._objects.list(_below(each, self.job.out))]

    def _prune_models(self, state: State) -> list[str]:
        """Remove models that no state to be kept names any more; return their names."""
        age, now = self.job.keep.days * DAY, datetime.datetime.now(datetime.UTC)
        removed = []
        for name, facts in state.retired.items():
            left = (now - datetime.datetime.fromisoformat(facts["since"])).total_seconds()
            if facts["states"] < self.job.keep.versions or left < age:
                continue
            if self._remove_model(name):
                removed.append(name)
        return removed

    def _remove_model(self, name: str) -> bool:
        """Remove a model with its labels, unless somebody reads it; return whether it went."""
        places = self._places_of(name)
        if any(ResultsStore(place).is_read() for place in places):
            return False
        for key in (_below(place, self.job.out) for place in places):
            # The pointer first: of a removal that is cut off, no version stays that has lost parts.
            self._objects.delete_tree(f"{key}/{POINTER}")
            self._objects.delete_tree(key)
        return True

    def _prune_inventories(self, store: MatrixStore) -> None:
        """Remove inventories of generations that are gone."""
        marks = [info.provenance.get(MARK, {}) for info in store.generations()]
        known = {f"{INVENTORIES}/{mark.get('inventory')}.json" for mark in marks}
        for key in self._objects.list(INVENTORIES):
            if key not in known:
                self._objects.delete(key)


def find_store(job: Job) -> MatrixStore | None:
    """Return the store of a job as it is now, or None if the first run makes it."""
    try:
        return open_store(job.store)
    except StoreError as error:
        is_absent = error.got in ("nothing there", "an unfinished ingest")
        if job.source and is_absent:
            return None
        raise


def check_rows_owner(job: Job) -> None:
    """Refuse a store to bring rows into that another job or something else keeps."""
    head = find_store(job) if job.source else None
    if head is not None:
        _own_inventory(job, head)


def _own_inventory(job: Job, store: MatrixStore) -> str | None:
    """Return the digest of the inventory of a store that is the job's own."""
    told = store.provenance.get("job")
    if told is not None and told != job.name:
        expected, hint = f"rows of job {job.name!r}", "Name another store (input.store)."
        raise InputError(store.url, expected, f"those of job {told!r}", hint)
    return present_inventory(store.url)


def _check_storing(store: MatrixStore, job: Job) -> None:
    """Refuse another way to store rows than that of the rows that are there.

    Where ids that occur twice were refused there are none, so that any rule goes on from there.
    """
    told = job.input
    rule = store.provenance.get("duplicates", "refuse")
    for name, asked, found, takes_any in (
        ("layout", told.layout, store.layout, told.layout == "auto"),
        ("storage", told.storage, store.codec, told.storage == "auto"),
        ("duplicates", told.duplicates, rule, rule == "refuse"),
    ):
        if asked != found and not takes_any:
            expected = f"{found!r} as for the rows that are there"
            hint = "Restore it, or give the job another place (out) to start anew."
            raise InputError(f"{job.path}: input.{name}", expected, repr(asked), hint)


def plan_models(job: Job, wish: Wish, published: State | None) -> list[ModelPlan]:
    """Return for every model whether it must be fitted anew, and why."""
    unknown = sorted(set(wish.refit) - set(job.models))
    if unknown:
        expected = f"a model among {', '.join(job.models)}"
        raise InputError("--refit", expected, repr(unknown[0]), "Check the spelling.")
    known = {} if published is None else published.models
    return [
        ModelPlan(name, model, known.get(name), _refit_reason(name, model, known, wish))
        for name, model in job.models.items()
    ]


def _refit_reason(
    name: str, model: Model, known: Mapping[str, Mapping[str, Any]], wish: Wish
) -> str | None:
    before = known.get(name)
    if before is None:
        return None
    if name in wish.refit:
        return "It was asked for."
    if (changed := is_changed(model, before)) is not None:
        return f"Its {changed} changed."
    if model.refit.period:
        last = datetime.datetime.fromisoformat(before["refit_at"])
        age = (datetime.datetime.now(datetime.UTC) - last).total_seconds()
        if age >= seconds(model.refit.period, f"models.{name}.refit.period"):
            return f"Its last fit is {age / DAY:.1f} days old."
    return None


def is_changed(model: Model, before: Mapping[str, Any]) -> str | None:
    """Return what differs from the model of the same name that is published, in a word."""
    for name in ("parameters", "seed"):
        if before[name] != json.loads(json.dumps(getattr(model, name))):
            return name
    return None


def _before(plan: ModelPlan, rows: StoredMatrix | None) -> Before | None:
    """Return the published version of a model."""
    from distclust.jobs.kinds import Before

    facts = plan.before
    if facts is None or rows is None:
        return None
    return Before(facts["version"], facts["labels_version"], rows, facts["refit_at"])


def _facts(plan: ModelPlan, made: Made) -> dict[str, Any]:
    return {
        "kind": plan.model.kind,
        "parameters": plan.model.parameters,
        "seed": plan.model.seed,
        "version": made.version,
        "labels_version": made.labels_version,
        "refit_at": made.refit_at,
    }


def _is_up_to_date(
    head: MatrixStore | None,
    survey: Survey | None,
    plans: Sequence[ModelPlan],
    published: State | None,
) -> bool:
    """Whether what is published is what a run would publish."""
    if head is None or published is None or not (survey is None or survey.is_quiet):
        return False
    is_same = head.fingerprint == published.fingerprint
    has_same_models = {plan.name for plan in plans} == published.models.keys()
    return is_same and has_same_models and all(plan.is_settled for plan in plans)


def _below(place: str, out: str) -> str:
    """Return a place as it is named from the job's own, if it is inside."""
    return place.removeprefix(f"{out}/")


def plan_run(job: Job, wish: Wish) -> dict[str, Any]:
    """Return what a run would do now, as JSON values; nothing is changed."""
    runner = Runner(job, wish, contextlib.nullcontext)
    published = JobLedger(open_objects(job.out)).published()
    head = find_store(job)
    survey = runner.look(head)
    plans = plan_models(job, wish, published)
    is_same = (
        head is not None and published is not None and (head.fingerprint == published.fingerprint)
    )
    has_new_rows = not is_same or not (survey is None or survey.is_quiet)
    files = {}
    if survey is not None:
        names = ("new", "changed", "gone", "touched", "unchanged")
        files = {name: len(getattr(survey, name)) for name in names}
    models = {plan.name: plan.what(has_new_rows) for plan in plans}
    for name in set(published.models if published else ()) - set(job.models):
        models[name] = "no longer part of the job"
    up_to_date = _is_up_to_date(head, survey, plans, published)
    return {"job": job.name, "files": files, "models": models, "is_up_to_date": up_to_date}


def _count_common(before: StoredMatrix, after: StoredMatrix) -> int:
    """Return how many rows are in both of two generations."""
    from distclust.store.changes import changes_between

    changes = changes_between(before, after)
    if changes is None:  # compacted or rolled back: positions say nothing
        return min(before.shape[0], after.shape[0])
    return changes.n_kept
