"""Callbacks see every job as it ends and do not change the run."""

from potluck.loop.callbacks import Arrival, Callback
from potluck.methods.fedavg import FedAvg
from support.tiny import Recorder, make_loop, tiny


class Listener(Callback):
    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int, int]] = []
        self.steps_then: list[int] = []
        self.steps = 0

    def on_arrival(self, arrival: Arrival) -> None:
        self.heard.append((arrival.kind, arrival.round, arrival.client, arrival.samples))
        self.steps_then.append(self.steps)

    def on_step(self, step: object) -> None:
        self.steps += 1


def test_callbacks_see_arrivals_with_trained_samples():
    listener, recorder, clients = Listener(), Recorder(), tiny(3)
    make_loop(FedAvg(), clients, rounds=2, callbacks=[listener, recorder]).run()
    trained = [each for each in listener.heard if each[0] == "train"]
    assert [(number, client) for _, number, client, _ in trained] == [
        (n, c) for n in (1, 2) for c in range(3)
    ]
    assert sum(samples for *_, samples in trained) == sum(s.record.trained_samples for s in recorder.steps)
    assert listener.steps_then[:3] == [0, 0, 0]  # told before the server step that they make
    assert {kind for kind, *_ in listener.heard} == {"train", "evaluate"}


def test_listening_changes_nothing():
    alone, heard = Recorder(), Recorder()
    make_loop(FedAvg(), tiny(3), rounds=2, callbacks=[alone]).run()
    make_loop(FedAvg(), tiny(3), rounds=2, callbacks=[heard, Listener()]).run()
    events = [
        [(s.record.accuracy, s.record.train_loss, s.record.bytes_up) for s in each.steps]
        for each in (alone, heard)
    ]
    assert events[0] == events[1]
