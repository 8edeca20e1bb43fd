"""The command tree: each group and command, where it stands, and its first sentence. A command is imported from its
module, where its flags are, when it is called, and imports what is slow to load once it runs: its help and the flags
that the shell completes are there at once. It returns None or its exit code."""

import click

from trainyard_cli.commands.shared.suggestions import CommandGroup, LazyCommand
from trainyard_protocol import __version__

_TREE = """
jobs                   |                                                     | Submit and manage training jobs.
jobs cancel            | commands.jobs.delete.cancel                         | Cancel jobs.
jobs delete            | commands.jobs.delete.delete                         | Delete jobs that have ended: record, log, curves, resource usage.
jobs describe          | commands.jobs.jobs.describe                         | Show a job.
jobs dev               | capabilities.attachments.dev.commands.dev           | Open a shell in a job that waits, with the code of a directory in it, synchronised while the shell is open.
jobs diff              | capabilities.experiments.commands.diff              | Show what differs between two jobs: arguments, config, labels, origin, outcome, last value of each metric.
jobs download          | capabilities.files.commands.download                | Download a file or a directory of a job's job-dir.
jobs exec              | capabilities.attachments.commands.execute           | Run a command in a running replica, and exit with its exit code.
jobs explain           | commands.jobs.jobs.explain                          | Show a replica's environment and the command to run it by hand.
jobs files             | capabilities.files.commands.files                   | List the files in a job's job-dir: name, size and time.
jobs list              | commands.jobs.listing.list_jobs                     | List jobs.
jobs metrics           | commands.jobs.jobs.metrics                          | Show the metrics of a job: of each the last value, the best one and the extremes.
jobs port-forward      | capabilities.attachments.commands.port_forward      | Listen on this machine for ports of a running replica, until Ctrl-C.
jobs repro             | capabilities.origins.commands.repro                 | Write a directory with everything to run a job by hand: config, packages, origin, and a script that runs it.
jobs rerun             | commands.jobs.submit.rerun                          | Submit a job again, with its packages and its config.
jobs shell             | capabilities.attachments.commands.shell             | Open a shell in a running replica: bash if it is there, else sh.
jobs stream-logs       | commands.jobs.logs.stream_logs                      | Show a job's log until the job ends, and exit with the job's exit code.
jobs submit            |                                                     | Submit a job.
jobs submit prediction | commands.jobs.submit.submit_prediction              | Refused.
jobs submit training   | commands.jobs.submit.submit_training                | Submit a training job.
jobs tensorboard       | capabilities.tensorboard.commands.tensorboard       | Run TensorBoard on this machine for a job, until Ctrl-C.
jobs trials            | commands.jobs.trials.trials                         | Show the trials of a study, best first: state, metric, hyperparameters and times.
jobs update            | commands.jobs.jobs.update                           | Change a job's labels, or the note about it.
jobs validate          | commands.jobs.submit.validate                       | Check a job and show its replicas, without submitting it.
jobs wait              | commands.jobs.logs.wait                             | Wait for jobs to end, without their logs.
jobs why               | capabilities.why.commands.why                       | Show why a job is queued and what would start it.
agent                  |                                                     | Make this machine, or a Kubernetes cluster, a worker of a server.
agent doctor           | capabilities.agents.commands.examine                | Check what a joined agent stands on: its engine, its permissions, orphans of runs.
agent join             | capabilities.agents.commands.join                   | Run jobs of a server on this machine, until Ctrl-C.
agent storage          | capabilities.agents.commands.serve_storage          | Serve the server's storage to this machine's jobs, as gs://, until Ctrl-C.
agents                 |                                                     | Add machines, list them, and take them out of service.
agents add             | capabilities.agents.commands.add                    | Make a token for the agent of a new machine, and print the command to run there.
agents drain           | capabilities.agents.commands.drain                  | Start no new run on an agent, by name or id.
agents list            | capabilities.agents.commands.list_all               | List the agents: state, runtimes, capacity, last contact and lease.
agents remove          | capabilities.agents.commands.remove                 | Forget an agent without unfinished runs, by name or id, and revoke its tokens.
audit                  |                                                     | See who did what, from where.
audit list             | capabilities.audit.commands.list_audit              | List changes, sign-ins and refused calls, the newest first.
backup                 | capabilities.backups.commands.backup                | Write everything that the service stores to FILE, while it runs.
build                  | commands.images.build.build                         | Build the image of a Dockerfile, for jobs with a custom image.
channels               |                                                     | Set, list, test and delete the notification channels of a project.
channels delete        | capabilities.notifications.commands.delete_channels | Delete channels of --project, with what waits to be delivered to them.
channels history       | capabilities.notifications.commands.history         | List the newest notifications of --project, and whether they were delivered.
channels list          | capabilities.notifications.commands.list_channels   | List the channels of --project, and whether the last notification was delivered.
channels set           | capabilities.notifications.commands.set_channel     | Set a channel of --project: a mail address, or a URL that gets a POST.
channels signing-key   | capabilities.notifications.commands.signing_key     | Print the key of the signatures of the project's webhooks.
channels test          | capabilities.notifications.commands.test_channel    | Send a test to a channel of --project now.
connect                |                                                     | Let clients of AI Platform on this machine use your server.
connect google         | capabilities.google.commands.connect_google         | Make names, certificates, a key and a gcloud configuration for Google's clients.
dashboard              | commands.service.dashboard.dashboard                | Open the dashboard in a browser, signed in.
debug-bundle           | capabilities.health.debug_commands.debug_bundle     | Write versions, settings, health, recent logs, queue and agents into one archive, without secrets.
disconnect             |                                                     | Undo what `connect` has changed on this machine.
disconnect google      | capabilities.google.commands.disconnect_google      | Remove names, certificates, key and gcloud configuration, and revoke the key.
doctor                 | capabilities.health.commands.doctor               | Check this machine, the service and its jobs for problems.
down                   | commands.service.service.down                       | Stop the service on this machine and all its replicas.
local                  |                                                     | Run a trainer on this machine without the service.
local train            | capabilities.local_train.commands.train_locally     | Run a training program, alone or as a chief with workers and other replicas.
login                  | commands.people.people.login                        | Save the token of a server.
logout                 | commands.people.people.logout                       | Forget the saved token of a server.
mcp                    | capabilities.mcp.commands.mcp                       | Serve jobs to AI agents as MCP tools: submit, wait, logs, compare and others.
projects               |                                                     | List projects, and decide who may do what in them.
projects add-member    | commands.people.people.add_member                   | Give a person a role in --project, in place of an earlier one.
projects list          | commands.people.people.list_projects                | List the projects that you may see, with your role.
projects members       | commands.people.people.list_members                 | List who has a role in a project.
projects remove-member | commands.people.people.remove_member                | Take a person's role in --project away.
rehearse               | capabilities.backups.commands.rehearse              | Start the backup in FILE beside everything else, and check all that can be checked.
restore                | capabilities.backups.commands.restore               | Make a new state directory from the backup in FILE.
runtimes               |                                                     | List and build the container images of package jobs.
runtimes build         | commands.images.runtimes.build                      | Build runtime images on this machine's container engine, or the one in DOCKER_HOST.
runtimes list          | commands.images.runtimes.list_runtimes              | List the image of each runtime version, and whether this machine has it.
secrets                |                                                     | Set, list and delete the secrets of a project, which its jobs may get.
secrets delete         | capabilities.secrets.commands.delete_secrets        | Delete secrets of --project.
secrets list           | capabilities.secrets.commands.list_secrets          | List the secrets of --project: who set them, and the last job that got each.
secrets set            | capabilities.secrets.commands.set_secret            | Set a secret of --project, in place of an earlier value.
shell-init             | commands.service.shell_init.shell_init              | Print shell code that defines `jobs`.
status                 | commands.service.service.status                     | Show processes, health checks, agents and job counts.
tokens                 |                                                     | Make, list and revoke tokens.
tokens create          | commands.people.people.create_token                 | Make a token with your own roles.
tokens list            | commands.people.people.list_tokens                  | List your tokens, without their secrets.
tokens revoke          | commands.people.people.revoke_tokens                | Revoke tokens.
up                     | commands.service.service.up                         | Start the service on this machine, in the background.
usage                  | capabilities.sharing.commands.usage                 | Show CPU-hours, GPU-hours, waits and failures by project, user, month or label.
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
