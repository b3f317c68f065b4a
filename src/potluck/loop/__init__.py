"""The training loop: server, dispatch, schedule, evaluation, records, callbacks."""
