//! What is moved: each table, its columns, and where they are read from.

use super::{
    Kind::{Big, Bytes, Flag, Keys, Small, Text, Whole},
    Table,
};

/// Everything there is. The pieces of history are partitions there, made by the spans; nodes, leases and news are of the
/// moment.
pub(crate) const TABLES: &[Table] = &[
    table(
        "application",
        "application",
        &[
            ("key", Big),
            ("version", Big),
            ("uid", Text),
            ("name", Text),
            ("rate_limit", Big),
            ("rules", Text),
            ("metadata", Text),
            ("created_at", Big),
            ("updated_at", Big),
            ("deleted_at", Big),
        ],
    ),
    table(
        "endpoint",
        "endpoint",
        &[
            ("key", Big),
            ("app", Big),
            ("version", Big),
            ("uid", Text),
            ("url", Text),
            ("description", Text),
            ("disabled_why", Small),
            ("disabled_at", Big),
            ("event_types", Text),
            ("channels", Text),
            ("metadata", Text),
            ("rate_limit", Big),
            ("rules", Text),
            ("sealed", Bytes),
            ("created_at", Big),
            ("updated_at", Big),
            ("deleted_at", Big),
            ("buried", Flag),
        ],
    ),
    table(
        "event_type",
        "event_type",
        &[
            ("name", Text),
            ("version", Big),
            ("description", Text),
            ("archived", Flag),
            ("deprecated", Flag),
            ("feature_flags", Text),
            ("group_name", Text),
            ("schemas", Text),
            ("rules", Text),
            ("created_at", Big),
            ("updated_at", Big),
        ],
    ),
    table(
        "waiting",
        "waiting",
        &[
            ("endpoint", Big),
            ("message", Big),
            ("trigger_code", Small),
            ("due", Big),
            ("cycle", Whole),
            ("attempts", Whole),
            ("give_up_at", Big),
            ("last_delay", Big),
            ("ambiguous", Whole),
            ("ambiguous_since", Big),
            ("queued_at", Big),
            ("order_key", Big),
            ("place", Small),
        ],
    ),
    table(
        "dead",
        // Of a piece that is being forgotten, they are being forgotten too.
        "dead WHERE coalesce((SELECT retired FROM piece WHERE first_key <= message ORDER BY first_key DESC LIMIT 1), 0) = 0",
        &[
            ("endpoint", Big),
            ("message", Big),
            ("reason", Small),
            ("at", Big),
            ("cycle", Whole),
            ("app", Big),
            ("open", Small),
            ("replayed_at", Big),
        ],
    ),
    table(
        "health",
        "health",
        &[
            ("endpoint", Big),
            ("failures", Whole),
            ("open_until", Big),
            ("trips", Whole),
            ("failing_since", Big),
            ("permanent_streak", Whole),
            ("warned", Flag),
        ],
    ),
    table(
        "sequence",
        // Whoever counts next is another node, and takes a greater key than any that is in use.
        "(SELECT *, 0 AS last_key, 0 AS last_node FROM sequence)",
        &[
            ("endpoint", Big),
            ("order_key", Big),
            ("last", Big),
            ("last_key", Big),
            ("last_node", Big),
            ("used_at", Big),
        ],
    ),
    table(
        "api_key",
        "api_key",
        &[
            ("key", Big),
            ("hash", Bytes),
            ("name", Text),
            ("scopes", Text),
            ("app", Big),
            ("created_at", Big),
            ("expires_at", Big),
            ("revoked_at", Big),
            ("used_at", Big),
        ],
    ),
    table("revoked_token", "revoked_token", &[("token", Bytes), ("at", Big), ("forget_at", Big)]),
    table(
        "revoked_session",
        "revoked_session",
        &[("app", Big), ("session", Text), ("issued_until", Big), ("at", Big), ("forget_at", Big)],
    ),
    table(
        "audit",
        "audit",
        &[
            ("key", Big),
            ("at", Big),
            ("actor", Text),
            ("token", Text),
            ("operation", Text),
            ("objects", Text),
            ("origin", Text),
            ("status", Small),
        ],
    ),
    table(
        "tally",
        "tally",
        &[("span", Small), ("start", Big), ("kind", Small), ("subject", Big), ("what", Small), ("count", Big)],
    ),
    // The keys are given anew, in the same order.
    table("journal", "journal", &[("name", Text), ("at", Big), ("app", Big), ("what", Text)]),
    table("answer", "answer", &[("key", Bytes), ("at", Big), ("request", Bytes), ("status", Small), ("body", Bytes)]),
    table(
        "job",
        "job",
        &[
            ("key", Big),
            ("app", Big),
            ("kind", Text),
            ("name", Text),
            ("cursor", Big),
            ("total", Big),
            ("done", Big),
            ("changed", Big),
            ("status", Small),
            ("created_at", Big),
            ("updated_at", Big),
        ],
    ),
    table("payload_expiry", "payload_expiry", &[("at", Big), ("message", Big)]),
    table("left_behind", "left_behind", &[("what", Small), ("message", Big)]),
    table(
        "message",
        "message_{n}",
        &[("key", Big), ("app", Big), ("event_type", Text), ("owed", Keys), ("extra", Text), ("payload", Bytes)],
    ),
    table(
        "attempt",
        "attempt_{n}",
        &[
            ("message", Big),
            ("key", Big),
            ("endpoint", Big),
            ("class", Small),
            ("rule", Small),
            ("trigger_code", Small),
            ("cycle", Whole),
            ("number", Whole),
            ("started_at", Big),
            ("duration", Big),
            ("status", Small),
            ("url", Text),
            ("response", Bytes),
            ("death", Small),
            ("next_due", Big),
            ("backoff", Big),
            ("jitter", Big),
            ("retry_after", Big),
            ("capped", Flag),
            ("late", Big),
            ("late_why", Small),
        ],
    ),
    table("event_id", "event_id_{n}", &[("app", Big), ("event_id", Text), ("message", Big)]),
    Table {
        // What was accepted last may not be filed into its index yet, and all of it is in the messages' own rows.
        repeats: true,
        ..table(
            "idempotency",
            "(SELECT key, message, request FROM idempotency_{n} UNION
              SELECT substr(repeat, 1, 16), key, substr(repeat, 17) FROM message_{n} WHERE repeat IS NOT NULL)",
            &[("key", Bytes), ("message", Big), ("request", Bytes)],
        )
    },
    table(
        "note",
        // What is left of SQLite's own: the rounds begin anew.
        "note WHERE name NOT IN ('settled_through', 'minted_through', 'repeats_filed_through', 'retired_dead_round',
             'none_to_retire', 'payloads_left_behind_round', 'attempts_left_behind_round', 'sequences_round', 'moved', 'moving')",
        &[("name", Text), ("value", Bytes)],
    ),
];

const fn table(name: &'static str, from: &'static str, columns: &'static [(&'static str, super::Kind)]) -> Table {
    Table { name, columns, from, repeats: false }
}
