"""The training loop under every schedule: cohorts, messages, records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.method import Method, Update
from potluck.core.payload import Payload
from potluck.core.random import generator
from potluck.core.task import ClientInfo, Context
from potluck.core.training import Training
from potluck.loop.dispatch import ClientFailed
from potluck.loop.loop import TooFewClients
from potluck.loop.schedule import Evaluation, Schedule
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH
from potluck.methods.standalone import Standalone
from support.tiny import Recorder, make_loop, tiny


@dataclass(frozen=True)
class Number(Payload):
    value: Tensor


@dataclass
class Counting(Method[Tensor, Number, Number]):
    """The server counts its steps; a client answers with what it was sent."""

    fail: int = -1
    poison: int = -1

    def init_server(self, ctx: Context) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)

    def broadcast(self, state: Tensor, client: ClientInfo, ctx: Context) -> Number:
        return Number(state)

    def client(self, me: Client, message: Number) -> Number:
        if me.info.index == self.fail:
            raise ValueError("no luck")
        return Number(message.value / (0.0 if me.info.index == self.poison else 1.0))

    def server(self, state: Tensor, updates: Sequence[Update[Number]], ctx: Context) -> Tensor:
        state += 1  # in place on purpose: what was sent before must not change
        return state


@dataclass
class Noting(Counting):
    """The first client notes its job's number, the second what is no number, the third fails, the fourth notes nothing."""

    fail: int = 2

    def client(self, me: Client, message: Number) -> Number:
        if me.info.index < 2:
            me.note("jobs", me.job if me.info.index == 0 else float("nan"))
        return super().client(me, message)


def test_notes_are_kept_client_by_client_in_the_order_of_those_that_answered():
    recorder = Recorder()
    make_loop(Noting(), tiny(4), rounds=2, callbacks=[recorder], on_failure="continue").run()
    records = [step.record for step in recorder.steps]
    assert [record.participants for record in records] == [[0, 1, 3]] * 2
    numbers = [record.client_notes["jobs"] for record in records]
    assert numbers[1][0] == numbers[0][0] + 1
    assert [each[1:] for each in numbers] == [[None, None]] * 2
    assert [record.notes["jobs"] for record in records] == [each[0] for each in numbers]


def test_synchronous_every_participant_gets_the_same_state_and_none_is_stale():
    recorder = Recorder()
    make_loop(Counting(), tiny(4), rounds=3, callbacks=[recorder]).run()
    assert [[m.value.item() for r, _, m in recorder.sent if r == n] for n in (1, 2, 3)] == [
        [0.0] * 4,
        [1.0] * 4,
        [2.0] * 4,
    ]
    assert [step.record.participants for step in recorder.steps] == [[0, 1, 2, 3]] * 3
    assert all(step.record.staleness == [0] * 4 for step in recorder.steps)


def test_asynchronous_the_server_steps_at_each_answer_and_staleness_is_real():
    """Two at work, jobs of 1 and 2.5 seconds: worked out by hand."""
    recorder = Recorder()
    make_loop(
        Counting(),
        tiny(2),
        rounds=3,
        callbacks=[recorder],
        buffer=1,
        duration=lambda info, n, message: 1.0 + 1.5 * info.index,
    ).run()
    order = [(step.record.participants[0], step.record.staleness[0]) for step in recorder.steps]
    assert order == [(0, 0), (0, 0), (1, 2), (0, 1), (0, 0), (1, 2)]
    assert [step.record.virtual_seconds for step in recorder.steps] == [1.0, 2.0, 2.5, 3.0, 4.0, 5.0]


def test_a_round_is_a_cohort_of_ended_jobs_in_both_schedules():
    for buffer, steps in ((0, 3), (1, 12), (2, 6)):
        recorder = Recorder()
        make_loop(Counting(), tiny(4), rounds=3, callbacks=[recorder], buffer=buffer).run()
        assert len(recorder.steps) == steps
        assert recorder.steps[-1].record.round == 3
        assert [step.record.round for step in recorder.steps].count(1) == steps // 3


def test_sent_messages_do_not_change_while_a_client_trains():
    recorder = Recorder()
    make_loop(Counting(), tiny(3), rounds=2, callbacks=[recorder], buffer=1).run()
    first = [message.value.item() for _, _, message in recorder.sent[:3]]
    assert first == [0.0, 0.0, 0.0]


def test_partial_participation_draws_without_replacement_from_the_servers_stream():
    def drawn(seed: int) -> list[list[int]]:
        recorder = Recorder()
        make_loop(Counting(), tiny(8, seed=seed), rounds=6, participation=0.5, callbacks=[recorder]).run()
        return [step.record.participants for step in recorder.steps]

    assert all(len(set(round_)) == 4 for round_ in drawn(0))
    assert len({tuple(round_) for round_ in drawn(0)}) > 1
    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


@pytest.mark.parametrize(
    ("share", "clients", "cohort"), [(0.29, 100, 29), (0.05, 10, 1), (0.1, 30, 3), (1.0, 7, 7)]
)
def test_cohort_size(share: float, clients: int, cohort: int):
    from potluck.loop.schedule import Schedule

    assert Schedule(1, participation=share).cohort(clients) == cohort


def test_clients_without_samples_get_no_jobs():
    from potluck.federation.members import Member, federate
    from support.tiny import Net, points

    empty = (torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))
    members = [Member(Net().double(), points(6, 1), points(3, 2)), Member(Net().double(), empty)]
    recorder = Recorder()
    make_loop(Standalone(), federate(members, num_classes=3), callbacks=[recorder]).run()
    assert all(step.record.participants == [0] for step in recorder.steps)


def test_an_exception_in_a_client_names_method_client_round_and_phase():
    with pytest.raises(
        ClientFailed, match=r"Counting, client 2 'client-2', train in round 1: ValueError: no luck"
    ) as caught:
        make_loop(Counting(fail=2), tiny(4)).run()
    assert "Traceback" in caught.value.__notes__[0]


def test_on_failure_continue_completes_the_round():
    recorder = Recorder()
    make_loop(Counting(fail=2), tiny(4), callbacks=[recorder], on_failure="continue").run()
    assert [step.record.participants for step in recorder.steps] == [[0, 1, 3]] * 2
    assert recorder.steps[0].record.failures[0]["client"] == 2


def test_a_bad_payload_is_a_failure_with_its_reason():
    recorder = Recorder()
    make_loop(Counting(poison=1), tiny(3), callbacks=[recorder]).run()
    failure = recorder.steps[0].record.failures[0]
    assert (failure["client"], failure["kind"]) == (1, "invalid")
    assert "not finite" in failure["reason"]
    assert torch.isfinite(recorder.end.state).all()


def test_too_few_answers_end_the_run_with_the_reason():
    with pytest.raises(TooFewClients, match=r"Round 1 ended with 2 usable answers.*min_clients = 3.*no luck"):
        make_loop(Counting(fail=0), tiny(3), on_failure="continue", min_clients=3).run()


def test_a_round_of_values_that_are_not_finite_names_the_learning_rate():
    with pytest.raises(TooFewClients, match=r"not finite.*; training diverged: lower training\.lr\)"):
        make_loop(Counting(poison=0), tiny(1), min_clients=1).run()


def test_protocols_are_recorded_apart():
    recorder = Recorder()
    evaluation = Evaluation("received", ("local", "shared", "global"))
    fed = tiny(2, hidden=(5,))
    make_loop(FedAvg(), fed, rounds=1, evaluation=evaluation, callbacks=[recorder]).run()
    record = recorder.steps[0].record
    assert record.accuracy == record.accuracy_received
    assert None not in (record.accuracy_local, record.accuracy_shared, record.accuracy_global)
    protocols = [score.protocol for score in recorder.steps[0].scores]
    assert sorted(protocols) == ["global", "local", "local", "received", "received", "shared", "shared"]


def test_received_scores_are_those_of_the_message():
    """After one FedAvg round all clients of one architecture share weights: on one test set they score alike."""
    fed = tiny(3, hidden=(5,))
    recorder = Recorder()
    evaluation = Evaluation("shared")
    make_loop(FedAvg(), fed, rounds=2, evaluation=evaluation, callbacks=[recorder]).run()
    scores = {score.score for score in recorder.steps[0].scores}
    assert len(scores) == 1


def test_rounds_without_evaluation_have_no_accuracy_and_the_last_always_has():
    recorder = Recorder()
    make_loop(Standalone(), rounds=5, evaluation=Evaluation(every=2), callbacks=[recorder]).run()
    assert [step.record.accuracy is None for step in recorder.steps] == [True, False, True, False, False]


def test_evaluated_asynchronous_rounds_have_scores_of_all_participants():
    """Answers mostly come in a later round than they were asked for in."""
    recorder = Recorder()
    plan = {"buffer": 1, "concurrency": 4, "duration": lambda info, n, m: 1.0 + 0.01 * info.index}
    loop = make_loop(
        Standalone(), tiny(4), rounds=5, evaluation=Evaluation(every=2), callbacks=[recorder], **plan
    )
    loop.run()
    tested = {step.record.round: len(step.scores) for step in recorder.steps if step.scores}
    assert tested == {2: 4, 4: 4, 5: 4}


def test_asynchronous_rounds_score_every_client_not_only_fast_ones():
    """Client 0 takes a second, client 1 three and a half: the first rounds are 0 0, 0 1, 0 0."""
    recorder = Recorder()
    plan = {"buffer": 1, "concurrency": 2, "duration": lambda info, n, m: 1.0 + 2.5 * info.index}
    make_loop(Standalone(), tiny(2), rounds=4, callbacks=[recorder], **plan).run()
    answered = [step.record.participants for step in recorder.steps]
    assert answered[:6] == [[0], [0], [0], [1], [0], [0]]
    ends = [step for step in recorder.steps if step.scores][:3]
    assert [[score.client.index for score in step.scores] for step in ends] == [[0], [0, 1], [0, 1]]
    last = {score.client.index: score.score.accuracy for score in ends[-1].scores}
    assert ends[-1].record.accuracy == pytest.approx((last[0] + last[1]) / 2)
    assert last[1] == {score.client.index: score.score.accuracy for score in ends[-2].scores}[1]


def test_a_client_that_is_too_far_ahead_waits_for_the_others():
    """Client 0 takes a second, client 1 ten: unbounded, ten of the first eleven answers are client 0's."""
    plan = {"buffer": 1, "concurrency": 2, "duration": lambda info, n, m: 1.0 + 9.1 * info.index}

    def answered(lead: int | None) -> list[list[int]]:
        recorder = Recorder()
        make_loop(Standalone(), tiny(2), rounds=6, lead=lead, callbacks=[recorder], **plan).run()
        return [step.record.participants for step in recorder.steps]

    assert answered(0)[:11] == [[0]] * 10 + [[1]]
    # Client 1 has begun its first job, so the third of client 0 is the last: 3 - 1 = 2.
    assert answered(2)[:8] == [[0]] * 3 + [[1]] + [[0]] + [[1]] + [[0]] + [[1]]
    assert sorted(number for step in answered(1) for number in step) == [0] * 6 + [1] * 6
    assert answered(None)[:6] == [[0]] * 5 + [[1]]


def test_lead_is_limited_only_where_several_clients_work_at_once():
    assert Schedule(mode="async").max_lead(10) == 0
    assert Schedule(mode="async", concurrency=1).max_lead(10) == 0
    assert Schedule(buffer=1, concurrency=3).max_lead(1) == 0  # a single client leads nobody
    assert Schedule(mode="async", concurrency=2).max_lead(10) == 4
    assert Schedule().max_lead(10) == 0  # whole rounds
    assert Schedule(mode="async", lead=7).max_lead(10) == 7


def test_absent_client_does_not_block_others():
    recorder = Recorder()
    plan = {"buffer": 1, "concurrency": 2, "available": lambda info, draw: info.index > 0}
    make_loop(Standalone(), tiny(3), rounds=4, lead=1, callbacks=[recorder], **plan).run()
    trained = [number for step in recorder.steps for number in step.record.participants]
    assert sorted(trained) == [1] * 6 + [2] * 6


@pytest.mark.parametrize("protocol", ["local", "received", "shared"])
def test_scores_bear_the_round_they_are_of(protocol):
    recorder = Recorder()
    make_loop(
        FedAvg(), tiny(3, hidden=(5,)), rounds=3, evaluation=Evaluation(protocol), callbacks=[recorder]
    ).run()
    for step in recorder.steps:
        assert {score.round for score in step.scores} == {step.record.round}
    assert {score.round for score in recorder.end.scores} == {3}


def test_every_client_is_scored_once_at_the_end():
    recorder = Recorder()
    make_loop(Standalone(), tiny(4), participation=0.25, callbacks=[recorder]).run()
    assert [score.client.index for score in recorder.end.scores] == [0, 1, 2, 3]
    assert all(score.final for score in recorder.end.scores)


def test_one_client_per_architecture_can_stand_for_all():
    recorder = Recorder()
    evaluation = Evaluation("received", clients="one-per-architecture")
    make_loop(Standalone(), tiny(4), rounds=1, evaluation=evaluation, callbacks=[recorder]).run()
    assert [score.client.index for score in recorder.steps[0].scores] == [0, 1]


def test_accuracy_is_the_unweighted_mean_over_clients():
    from potluck.wire.score import Score, summarise

    summary = summarise([Score(1, 2, 1.0), Score(8, 8, 4.0)])
    assert summary.accuracy == 0.75
    assert summary.micro == 0.9
    assert summary.std == 0.25
    assert summary.loss == 0.5


def test_a_client_can_be_fetched_after_any_step():
    states = []

    class Fetching(Recorder):
        def on_step(self, step) -> None:
            states.append(step.fetch(1)["model"]["head.weight"])

    make_loop(FedGH(), callbacks=[Fetching()], rounds=2).run()
    assert not torch.equal(states[0], states[1])


def test_traffic_is_counted_from_the_messages():
    recorder = Recorder()
    make_loop(FedGH(), tiny(2), rounds=1, callbacks=[recorder]).run()
    record = recorder.steps[0].record
    assert record.floats_down == 2 * (3 * 3 + 3)
    assert record.floats_up == 2 * (3 * 3 + 3)
    assert record.bytes_up > 8 * record.floats_up


def test_the_whole_run_leaves_global_random_state_alone():
    fed = tiny(2)
    before = torch.random.get_rng_state()
    make_loop(FedGH(), fed, rounds=1).run()
    assert torch.equal(before, torch.random.get_rng_state())


def test_dropout_draws_from_the_clients_own_stream():
    """Two runs with the same seed agree although the model uses torch's default generator for dropout."""
    from support.tiny import Net

    class Dropping(Net):
        def features(self, x: Tensor) -> Tensor:
            return torch.nn.functional.dropout(super().features(x), 0.5, self.training)

    from potluck.federation.members import Member, federate
    from support.tiny import points

    torch.rand(1)  # the caller's own stream may stand anywhere

    def trained(model: Net) -> Tensor:
        recorder = Recorder()
        make_loop(FedGH(), federate([Member(model, points(8, 1))], num_classes=3), callbacks=[recorder]).run()
        return recorder.end.state.weight

    model = Dropping().double()
    first = trained(model)
    torch.rand(5)
    assert torch.equal(first, trained(model))


def test_draw_touches_only_drawn_clients():
    """What a round costs must not grow with the population."""

    class Many(Sequence[int]):
        """So many clients that nobody should go through them."""

        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, place: int) -> int:  # type: ignore[override]
            return place

        def __iter__(self) -> NoReturn:
            raise AssertionError("somebody went through all clients")

    loop = make_loop(FedAvg())
    drawn = loop.dispatcher.choose(Many(), 3)
    assert len(set(drawn)) == 3
    stream = generator(loop.dispatcher.task.seed, "sampling", 1)
    assert drawn == loop.schedule.draw(range(100_000), 3, stream)  # the ones that were always drawn


def test_a_payload_may_have_as_many_mebibytes_as_set():
    """8 · 24,576 numbers of eight bytes are 1.5 MiB."""
    for limit, failures in ((1.0, 1), (1.6, 0)):
        recorder = Recorder()
        method = FedAvg(aggregate="full")
        fed = tiny(1, hidden=(24_576,), training=Training(epochs=1, batch_size=0, lr=0.01))
        loop = make_loop(method, fed, rounds=1, callbacks=[recorder], max_payload_mb=limit, min_clients=0)
        loop.run()
        assert len(recorder.steps[0].record.failures) == failures
