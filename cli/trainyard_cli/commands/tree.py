"""The command tree: each group and command, where it stands, and its first sentence. A command is imported from its
module, where its flags are, when it is called, and imports what is slow to load once it runs: its help and the flags
that the shell completes are there at once. It returns None or its exit code."""

import click

from trainyard_cli.commands.shared.suggestions import CommandGroup, LazyCommand
from trainyard_protocol import __version__

_TREE = """
jobs                   |                                   | Submit and manage training jobs.
jobs cancel            | jobs.delete.cancel                | Cancel jobs.
jobs delete            | jobs.delete.delete                | Delete jobs that have ended: record, log, curves, resource usage.
jobs describe          | jobs.jobs.describe                | Show a job.
jobs dev               | jobs.dev.dev                      | Open a shell in a job that waits, with the code of a directory in it, synchronised while the shell is open.
jobs diff              | jobs.jobs.diff                    | Show what differs between two jobs: arguments, config, labels, origin, outcome, last value of each metric.
jobs download          | jobs.files.download               | Download a file or a directory of a job's job-dir.
jobs exec              | jobs.attach.execute               | Run a command in a running replica, and exit with its exit code.
jobs explain           | jobs.jobs.explain                 | Show a replica's environment and the command to run it by hand.
jobs files             | jobs.files.files                  | List the files in a job's job-dir: name, size and time.
jobs list              | jobs.listing.list_jobs            | List jobs.
jobs metrics           | jobs.jobs.metrics                 | Show the metrics of a job: of each the last value, the best one and the extremes.
jobs port-forward      | jobs.attach.port_forward          | Listen on this machine for ports of a running replica, until Ctrl-C.
jobs repro             | jobs.repro.repro                  | Write a directory with everything to run a job by hand: config, packages, origin, and a script that runs it.
jobs rerun             | jobs.submit.rerun                 | Submit a job again, with its packages and its config.
jobs shell             | jobs.attach.shell                 | Open a shell in a running replica: bash if it is there, else sh.
jobs stream-logs       | jobs.logs.stream_logs             | Show a job's log until the job ends, and exit with the job's exit code.
jobs submit            |                                   | Submit a job.
jobs submit prediction | jobs.submit.submit_prediction     | Refused.
jobs submit training   | jobs.submit.submit_training       | Submit a training job.
jobs tensorboard       | jobs.jobs.tensorboard             | Run TensorBoard on this machine for a job, until Ctrl-C.
jobs trials            | jobs.trials.trials                | Show the trials of a study, best first: state, metric, hyperparameters and times.
jobs update            | jobs.jobs.update                  | Change a job's labels, or the note about it.
jobs validate          | jobs.submit.validate              | Check a job and show its replicas, without submitting it.
jobs wait              | jobs.logs.wait                    | Wait for jobs to end, without their logs.
jobs why               | jobs.jobs.why                     | Show why a job is queued and what would start it.
agent                  |                                   | Make this machine, or a Kubernetes cluster, a worker of a server.
agent doctor           | service.agents.examine            | Check what a joined agent stands on: its engine, its permissions, orphans of runs.
agent join             | service.agents.join               | Run jobs of a server on this machine, until Ctrl-C.
agent storage          | service.agents.serve_storage      | Serve the server's storage to this machine's jobs, as gs://, until Ctrl-C.
agents                 |                                   | Add machines, list them, and take them out of service.
agents add             | service.agents.add                | Make a token for the agent of a new machine, and print the command to run there.
agents drain           | service.agents.drain              | Start no new run on an agent, by name or id.
agents list            | service.agents.list_all           | List the agents: state, runtimes, capacity, last contact and lease.
agents remove          | service.agents.remove             | Forget an agent without unfinished runs, by name or id, and revoke its tokens.
audit                  |                                   | See who did what, from where.
audit list             | people.audit.list_audit           | List changes, sign-ins and refused calls, the newest first.
backup                 | service.backups.backup            | Write everything that the service stores to FILE, while it runs.
build                  | images.build.build                | Build the image of a Dockerfile, for jobs with a custom image.
channels               |                                   | Set, list, test and delete the notification channels of a project.
channels delete        | people.channels.delete_channels   | Delete channels of --project, with what waits to be delivered to them.
channels history       | people.channels.history           | List the newest notifications of --project, and whether they were delivered.
channels list          | people.channels.list_channels     | List the channels of --project, and whether the last notification was delivered.
channels set           | people.channels.set_channel       | Set a channel of --project: a mail address, or a URL that gets a POST.
channels signing-key   | people.channels.signing_key       | Print the key of the signatures of the project's webhooks.
channels test          | people.channels.test_channel      | Send a test to a channel of --project now.
connect                |                                   | Let clients of AI Platform on this machine use your server.
connect google         | service.connect.connect_google    | Make names, certificates, a key and a gcloud configuration for Google's clients.
dashboard              | service.dashboard.dashboard       | Open the dashboard in a browser, signed in.
debug-bundle           | service.debug.debug_bundle        | Write versions, settings, health, recent logs, queue and agents into one archive, without secrets.
disconnect             |                                   | Undo what `connect` has changed on this machine.
disconnect google      | service.connect.disconnect_google | Remove names, certificates, key and gcloud configuration, and revoke the key.
doctor                 | service.service.doctor            | Check this machine, the service and its jobs for problems.
down                   | service.service.down              | Stop the service on this machine and all its replicas.
local                  |                                   | Run a trainer on this machine without the service.
local train            | jobs.local_train.train_locally    | Run a training program, alone or as a chief with workers and other replicas.
login                  | people.people.login               | Save the token of a server.
logout                 | people.people.logout              | Forget the saved token of a server.
mcp                    | service.mcp.mcp                   | Serve jobs to AI agents as MCP tools: submit, wait, logs, compare and others.
projects               |                                   | List projects, and decide who may do what in them.
projects add-member    | people.people.add_member          | Give a person a role in --project, in place of an earlier one.
projects list          | people.people.list_projects       | List the projects that you may see, with your role.
projects members       | people.people.list_members        | List who has a role in a project.
projects remove-member | people.people.remove_member       | Take a person's role in --project away.
rehearse               | service.backups.rehearse          | Start the backup in FILE beside everything else, and check all that can be checked.
restore                | service.backups.restore           | Make a new state directory from the backup in FILE.
runtimes               |                                   | List and build the container images of package jobs.
runtimes build         | images.runtimes.build             | Build runtime images on this machine's container engine, or the one in DOCKER_HOST.
runtimes list          | images.runtimes.list_runtimes     | List the image of each runtime version, and whether this machine has it.
secrets                |                                   | Set, list and delete the secrets of a project, which its jobs may get.
secrets delete         | people.secrets.delete_secrets     | Delete secrets of --project.
secrets list           | people.secrets.list_secrets       | List the secrets of --project: who set them, and the last job that got each.
secrets set            | people.secrets.set_secret         | Set a secret of --project, in place of an earlier value.
shell-init             | service.shell_init.shell_init     | Print shell code that defines `jobs`.
status                 | service.service.status            | Show processes, health checks, agents and job counts.
tokens                 |                                   | Make, list and revoke tokens.
tokens create          | people.people.create_token        | Make a token with your own roles.
tokens list            | people.people.list_tokens         | List your tokens, without their secrets.
tokens revoke          | people.people.revoke_tokens       | Revoke tokens.
up                     | service.service.up                | Start the service on this machine, in the background.
usage                  | people.usage.usage                | Show CPU-hours, GPU-hours, waits and failures by project, user, month or label.
"""  # noqa: E501 - a table
"""`jobs` comes first: a verb alone is most likely one of its."""

_HIDDEN = "jobs submit prediction"


def _root() -> CommandGroup:
    root = CommandGroup(
        "trainyard",
        help="Run AI Platform Training jobs on your own machines.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    groups = {"": root}
    for line in _TREE.strip().splitlines():
        path, place, sentence = map(str.strip, line.split("|"))
        parent, _, name = path.rpartition(" ")
        command: click.Command
        if place:
            command = LazyCommand(name, place, help=sentence, hidden=path == _HIDDEN)
        else:
            command = groups[path] = CommandGroup(name, help=sentence)
        groups[parent].add_command(command)
    return root


trainyard = _root()
click.version_option(__version__, message="trainyard %(version)s")(trainyard)
