"""The round: loop, schedule, jobs and the letter they travel in, worker, evaluation, records, callbacks, privacy."""
