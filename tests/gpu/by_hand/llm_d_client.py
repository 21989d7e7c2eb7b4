#!/usr/bin/env python3
"""llm-d's own Python client, from its public sources, against amem-llm-d.

    llm_d_client.py --client DIRECTORY --endpoint ENDPOINT [--rounds N] JOB

DIRECTORY: pkg/client/python of a checkout of https://github.com/llm-d-incubation/llm-d-rl-time-slicing. This Python has its
dependencies (grpcio 1.81 or newer, protobuf 6.33.5 or newer). ENDPOINT: "unix:/run/amem/llm-d.sock", or HOST:PORT of its
`--listen`. JOB: a group that runs. Saves and restores it N times, and checks the states between. It needs a GPU no more than
the group does. Exit status 0: all as expected.
"""

import argparse
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("job")
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.client)
    from timeslice.snapshot_agent.client import SnapshotAgentClient, SnapshotAgentError

    with SnapshotAgentClient(arguments.endpoint) as client:
        def expect(state: str) -> None:
            states = {job.job_id: job.state for job in client.status().job_statuses}
            assert states.get(arguments.job) == state, states

        assert client.check_health().status == "SERVING"
        for accelerator in client.status().accelerator_statuses:
            print(accelerator)
        for _ in range(arguments.rounds):
            expect("JOB_STATE_RUNNING")
            for call, state in (client.snapshot_and_wait, "JOB_STATE_SAVED"), (client.restore_and_wait, "JOB_STATE_RUNNING"):
                answer = call(arguments.job, group="by-hand", poll_interval_sec=0.05)
                print(call.__name__, answer)
                assert answer.status == "OPERATION_STATUS_COMPLETE", answer
                expect(state)
        again = client.restore_and_wait(arguments.job)
        assert again.status == "OPERATION_STATUS_COMPLETE", again
        try:
            client.snapshot("no-such-job")
        except SnapshotAgentError as error:
            assert error.code is not None and error.code.name == "NOT_FOUND", error
        else:
            raise AssertionError("a job that does not exist was saved")
    return 0


if __name__ == "__main__":
    sys.exit(main())
