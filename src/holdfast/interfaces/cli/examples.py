"""An example for each command, shown at the end of its help and in the reference."""

ID = "01a1de9e-3feb-7141-acf8-3a160ca18709"
ENDPOINT = "3f9c0d6a51e27b84"

_EXAMPLES = f"""
demo --seconds 20
worker --app shop:hf
worker --app shop:hf --queues mail:20,reports:2 --processes 2
console --dsn postgresql://localhost/shop
console --host 0.0.0.0 --auth token
dlq discard --group 9768cf8bff58e58b --reason "test orders"
dlq export --since 1d
dlq groups --consumer billing
dlq list --consumer billing --since 2h
dlq show {ID}
deliveries cancel {ID} --reason late
deliveries list --status pending --queue mail
deliveries show {ID}
messages list --type 'order.*'
messages show {ID}
messages trace req-7f3a
jobs cancel {ID}
jobs list --status failed
jobs show {ID}
queues limit mail --limit 5 --reason "provider is slow"
queues list
queues pause mail --reason "provider is down"
queues pending mail
queues pending mail --consumer send_receipt --most 1000
queues resume mail
consumers catch-up billing
consumers keys billing --state blocked
consumers limit billing --rate 90/10s
consumers list
consumers pause billing --reason "wrong amounts"
consumers pause-key billing acme --reason "unpaid"
consumers resume billing
consumers resume-key billing acme
consumers retire old-billing --reason "renamed to billing"
projectors list
projectors rebuild order_totals --app shop:hf
workflows cancel {ID} --reason late
workflows fork {ID} charge
workflows list --state blocked
workflows names
workflows retry {ID} --reason fixed
workflows show {ID}
workflows signal {ID} approved --payload '{{"by": "ada"}}'
workflows trigger {ID} ship
groups cancel {ID} --reason late
groups list
groups show {ID}
schedules list
schedules pause digest:7 --reason "trial ended"
schedules put digest:7 send_digest --cron '0 7 * * *'
schedules remove digest:7
schedules resume digest:7
schedules run digest:7
schedules show digest:7
breakers list
breakers reset payments
breakers trip payments --for 10m --reason "maintenance"
webhooks add https://partner.example/hooks --event 'order.*'
webhooks disable {ENDPOINT} --reason "partner asked"
webhooks enable {ENDPOINT}
webhooks list
webhooks rotate-secret {ENDPOINT}
webhooks test {ENDPOINT}
idempotency list --status started
idempotency release ada order-1 --reason "client gave up"
idempotency show ada order-1
workers list
stats
stats --watch
stats --fail-if 'failed>10,oldest>5m'
doctor
doctor --strict
schema migrate
schema sql
schema status
audit list --limit 20
plans abandon {ID}
plans list
plans pause {ID}
plans resume {ID}
plans show {ID}
plans start {ID}
tokens create --name grace --scope operate
tokens list
tokens revoke grace
drill list
drill run
mcp --read-only
prune --older-than 30d
encryption keys
encryption rotate --app vault:hf
completion bash
version
"""

EXAMPLES = tuple(_EXAMPLES.split("\n")[1:-1])
"""Command lines without the program's name."""


def examples_of(path: str) -> list[str]:
    """The examples of the command with this path, such as `dlq list`, as complete command lines."""
    return [f"holdfast {line}" for line in EXAMPLES if line == path or line.startswith(f"{path} ")]
