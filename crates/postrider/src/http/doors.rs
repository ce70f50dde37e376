//! Every operation of the API, and what it takes to be let in: the one list of that.
//!
//! Whoever wants to know who is calling asks here first, so that an operation which is not on the list is shut to everybody;
//! a test compares the list with the API's own document.

use crate::credentials::{InDoubt, scopes::Scope};
use axum::extract::MatchedPath;
use http::{Extensions, Method};
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Door {
    method: &'static str,
    path: &'static str,
    /// As in the API's document.
    pub operation: &'static str,
    pub need: Need,
    pub audit: Audit,
}

/// What a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    /// Any token or key that holds, but a poller's.
    Anyone,
    Scope(Scope),
    /// The token of a poller, or else this.
    Poller(Scope),
}

/// Whether a call goes into the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    Yes,
    No,
}

impl Door {
    /// The one that a request stands before.
    pub fn of(method: &Method, extensions: &Extensions) -> Option<&'static Self> {
        let path = extensions.get::<MatchedPath>()?.as_str();
        // What answers GET answers HEAD, unless it does so itself.
        let at_path = BY_PATH.get(path)?;
        let find = |method: &str| at_path.iter().find(|door| door.method == method).copied();
        find(method.as_str()).or_else(|| if method == Method::HEAD { find("GET") } else { None })
    }

    pub fn in_doubt(&self) -> InDoubt {
        // Metrics must be seen when the store is gone, of all times.
        if self.operation == METRICS { InDoubt::Trust } else { InDoubt::Refuse }
    }
}

const fn door(method: &'static str, path: &'static str, operation: &'static str, need: Need, audit: Audit) -> Door {
    Door { method, path, operation, need, audit }
}

const READ: Need = Need::Scope(Scope::Read);
const MANAGE: Need = Need::Scope(Scope::Manage);
const REPLAY: Need = Need::Scope(Scope::Replay);
const ADMIN: Need = Need::Scope(Scope::Admin);
const INGEST: Need = Need::Scope(Scope::Ingest);
const METRICS: &str = "metrics";

const POLL: Need = Need::Poller(Scope::Read);
const MOVE: Need = Need::Poller(Scope::Manage);

use Audit::{No, Yes};

#[rustfmt::skip]
pub const ALL: &[Door] = &[
    door("GET", "/api/v1/health", "v1.health.get", Need::Nothing, No),
    door("HEAD", "/api/v1/health", "v1.health.head", Need::Nothing, No),
    door("GET", "/api/v1/health/ping", "v1.health.ping", Need::Nothing, No),
    door("GET", "/api/v1/health/live", "v1.health.live", Need::Nothing, No),
    door("GET", "/api/v1/health/ready", "v1.health.ready", Need::Nothing, No),
    door("GET", "/.well-known/jwks/{endpoint_id}", "v1.endpoint.public-keys", Need::Nothing, No),
    door("GET", "/metrics", METRICS, READ, No),

    door("GET", "/api/v1/auth/whoami", "v1.authentication.whoami", Need::Anyone, No),
    door("POST", "/api/v1/auth/logout", "v1.authentication.logout", Need::Anyone, Yes),
    door("POST", "/api/v1/auth/app-portal-access/{app_id}", "v1.authentication.app-portal-access", MANAGE, Yes),
    door("POST", "/api/v1/auth/app/{app_id}/expire-all", "v1.authentication.expire-all", MANAGE, Yes),
    door("POST", "/api/v1/token/revoke", "v1.token.revoke", ADMIN, Yes),

    door("GET", "/api/v1/api-key", "v1.api-key.list", ADMIN, No),
    door("POST", "/api/v1/api-key", "v1.api-key.create", ADMIN, Yes),
    door("GET", "/api/v1/api-key/{key_id}", "v1.api-key.get", ADMIN, No),
    door("POST", "/api/v1/api-key/{key_id}/revoke", "v1.api-key.revoke", ADMIN, Yes),
    door("POST", "/api/v1/api-key/{key_id}/rotate", "v1.api-key.rotate", ADMIN, Yes),
    door("GET", "/api/v1/audit", "v1.audit.list", ADMIN, No),
    door("GET", "/api/v1/node", "v1.node.list", READ, No),
    door("GET", "/api/v1/settings", "v1.settings.get", ADMIN, No),
    door("POST", "/api/v1/alert/test", "v1.alert.test", ADMIN, Yes),

    door("GET", "/api/v1/app", "v1.application.list", READ, No),
    door("POST", "/api/v1/app", "v1.application.create", MANAGE, Yes),
    door("GET", "/api/v1/app/{app_id}", "v1.application.get", READ, No),
    door("PUT", "/api/v1/app/{app_id}", "v1.application.upsert", MANAGE, Yes),
    door("PATCH", "/api/v1/app/{app_id}", "v1.application.patch", MANAGE, Yes),
    door("DELETE", "/api/v1/app/{app_id}", "v1.application.delete", MANAGE, Yes),

    door("GET", "/api/v1/event-type", "v1.event-type.list", READ, No),
    door("POST", "/api/v1/event-type", "v1.event-type.create", MANAGE, Yes),
    door("GET", "/api/v1/event-type/{event_type_name}", "v1.event-type.get", READ, No),
    door("PUT", "/api/v1/event-type/{event_type_name}", "v1.event-type.upsert", MANAGE, Yes),
    door("PATCH", "/api/v1/event-type/{event_type_name}", "v1.event-type.patch", MANAGE, Yes),
    door("DELETE", "/api/v1/event-type/{event_type_name}", "v1.event-type.delete", MANAGE, Yes),
    door("GET", "/api/v1/event-type/{event_type_name}/retry-schedule", "v1.event-type.get-retry-schedule", READ, No),
    door("PUT", "/api/v1/event-type/{event_type_name}/retry-schedule", "v1.event-type.set-retry-schedule", MANAGE, Yes),

    door("GET", "/api/v1/app/{app_id}/endpoint", "v1.endpoint.list", READ, No),
    door("POST", "/api/v1/app/{app_id}/endpoint", "v1.endpoint.create", MANAGE, Yes),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}", "v1.endpoint.get", READ, No),
    door("PUT", "/api/v1/app/{app_id}/endpoint/{endpoint_id}", "v1.endpoint.upsert", MANAGE, Yes),
    door("PATCH", "/api/v1/app/{app_id}/endpoint/{endpoint_id}", "v1.endpoint.patch", MANAGE, Yes),
    door("DELETE", "/api/v1/app/{app_id}/endpoint/{endpoint_id}", "v1.endpoint.delete", MANAGE, Yes),
    // Who sees a secret can sign with it.
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret", "v1.endpoint.get-secret", MANAGE, Yes),
    door("POST", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret/rotate", "v1.endpoint.rotate-secret", MANAGE, Yes),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", "v1.endpoint.get-headers", READ, No),
    door("PUT", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", "v1.endpoint.set-headers", MANAGE, Yes),
    door("PATCH", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", "v1.endpoint.patch-headers", MANAGE, Yes),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/mtls", "v1.endpoint.get-mtls", READ, No),
    door("PUT", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/mtls", "v1.endpoint.set-mtls-config", MANAGE, Yes),
    door("DELETE", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/mtls", "v1.endpoint.delete-mtls-config", MANAGE, Yes),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/oauth", "v1.endpoint.get-oauth", READ, No),
    door("PUT", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/oauth", "v1.endpoint.set-oauth-config", MANAGE, Yes),
    door("DELETE", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/oauth", "v1.endpoint.delete-oauth-config", MANAGE, Yes),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/stats", "v1.endpoint.get-stats", READ, No),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/attempt-stats", "v1.endpoint.get-attempt-stats", READ, No),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/attempt-history", "v1.statistics.endpoint-attempt-history", READ, No),
    door("GET", "/api/v1/app/{app_id}/attempt-history", "v1.statistics.app-attempt-history", READ, No),
    door("POST", "/api/v1/stats/usage/app", "v1.statistics.aggregate-app-stats", READ, Yes),
    door("PUT", "/api/v1/stats/usage/event-types", "v1.statistics.aggregate-event-types", READ, Yes),
    door("GET", "/api/v1/stats/overview", "v1.statistics.overview", READ, No),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/health", "v1.endpoint.get-health", READ, No),
    door("POST", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/health/reset", "v1.endpoint.reset-health", MANAGE, Yes),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/backlog", "v1.endpoint.get-backlog", READ, No),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/schedule", "v1.endpoint.get-schedule", READ, No),
    door("POST", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/pause", "v1.endpoint.pause", MANAGE, Yes),
    door("POST", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/resume", "v1.endpoint.resume", MANAGE, Yes),
    door("POST", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/cancel-msgs", "v1.endpoint.cancel-msgs", MANAGE, Yes),
    door("POST", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/recover", "v1.endpoint.recover", REPLAY, Yes),
    door("POST", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/replay-missing", "v1.endpoint.replay-missing", REPLAY, Yes),
    door("POST", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/bulk-replay", "v1.endpoint.bulk-replay", REPLAY, Yes),
    door("POST", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/send-example", "v1.endpoint.send-example", REPLAY, Yes),

    door("GET", "/api/v1/operational-webhook/endpoint", "v1.operational-webhook.endpoint.list", READ, No),
    door("POST", "/api/v1/operational-webhook/endpoint", "v1.operational-webhook.endpoint.create", MANAGE, Yes),
    door("GET", "/api/v1/operational-webhook/endpoint/{endpoint_id}", "v1.operational-webhook.endpoint.get", READ, No),
    door("PUT", "/api/v1/operational-webhook/endpoint/{endpoint_id}", "v1.operational-webhook.endpoint.upsert", MANAGE, Yes),
    door("DELETE", "/api/v1/operational-webhook/endpoint/{endpoint_id}", "v1.operational-webhook.endpoint.delete", MANAGE, Yes),
    door("GET", "/api/v1/operational-webhook/endpoint/{endpoint_id}/headers", "v1.operational-webhook.endpoint.get-headers", READ, No),
    door("PUT", "/api/v1/operational-webhook/endpoint/{endpoint_id}/headers", "v1.operational-webhook.endpoint.set-headers", MANAGE, Yes),
    door("GET", "/api/v1/operational-webhook/endpoint/{endpoint_id}/secret", "v1.operational-webhook.endpoint.get-secret", MANAGE, Yes),
    door("POST", "/api/v1/operational-webhook/endpoint/{endpoint_id}/secret/rotate", "v1.operational-webhook.endpoint.rotate-secret", MANAGE, Yes),
    door("GET", "/api/v1/operational-webhook/endpoint/{endpoint_id}/attempt", "v1.operational-webhook.endpoint.list-attempts", READ, No),
    door("GET", "/api/v1/operational-webhook/dead-letter", "v1.operational-webhook.dead-letter.list", READ, No),
    door("POST", "/api/v1/operational-webhook/dead-letter/{msg_id}/endpoint/{endpoint_id}/replay", "v1.operational-webhook.dead-letter.replay", REPLAY, Yes),

    door("GET", "/ingest/api/v1/source", "v1.ingest.source.list", READ, No),
    door("POST", "/ingest/api/v1/source", "v1.ingest.source.create", MANAGE, Yes),
    door("GET", "/ingest/api/v1/source/{source_id}", "v1.ingest.source.get", READ, No),
    door("PUT", "/ingest/api/v1/source/{source_id}", "v1.ingest.source.upsert", MANAGE, Yes),
    door("PATCH", "/ingest/api/v1/source/{source_id}", "v1.ingest.source.patch", MANAGE, Yes),
    door("DELETE", "/ingest/api/v1/source/{source_id}", "v1.ingest.source.delete", MANAGE, Yes),
    door("POST", "/ingest/api/v1/source/{source_id}/token/rotate", "v1.ingest.source.rotate-token", MANAGE, Yes),
    door("POST", "/ingest/api/v1/source/{source_id}/dashboard", "v1.ingest.authentication.consumer-portal-access", MANAGE, Yes),
    door("GET", "/ingest/api/v1/source/{source_id}/log", "v1.ingest.log.list", READ, No),
    door("GET", "/ingest/api/v1/source/{source_id}/endpoint", "v1.ingest.endpoint.list", READ, No),
    door("POST", "/ingest/api/v1/source/{source_id}/endpoint", "v1.ingest.endpoint.create", MANAGE, Yes),
    door("GET", "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}", "v1.ingest.endpoint.get", READ, No),
    door("PUT", "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}", "v1.ingest.endpoint.upsert", MANAGE, Yes),
    door("DELETE", "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}", "v1.ingest.endpoint.delete", MANAGE, Yes),
    door("GET", "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/headers", "v1.ingest.endpoint.get-headers", READ, No),
    door("PUT", "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/headers", "v1.ingest.endpoint.set-headers", MANAGE, Yes),
    door("GET", "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/secret", "v1.ingest.endpoint.get-secret", MANAGE, Yes),
    door("POST", "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/secret/rotate", "v1.ingest.endpoint.rotate-secret", MANAGE, Yes),
    door("GET", "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/transformation", "v1.ingest.endpoint.transformation.get", READ, No),
    door("PATCH", "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/transformation", "v1.ingest.endpoint.transformation.patch", MANAGE, Yes),
    // The token is in the path.
    door("POST", "/ingest/in/{token}", "v1.ingest.receive", Need::Nothing, No),
    door("GET", "/ingest/in/{token}", "v1.ingest.answer", Need::Nothing, No),

    // Every message in the audit log would drown the rest; the messages are a log of their own.
    door("POST", "/api/v1/app/{app_id}/msg", "v1.message.create", INGEST, No),
    door("POST", "/api/v1/app/{app_id}/msg-batch", "v1.message.create-batch", INGEST, No),
    door("GET", "/api/v1/app/{app_id}/msg", "v1.message.list", READ, No),
    door("GET", "/api/v1/app/{app_id}/message-search", "v1.message.search", READ, No),
    door("GET", "/api/v1/message-search", "v1.message.search-all", READ, No),
    door("GET", "/api/v1/message/{msg_id}", "v1.message.find", READ, No),
    door("GET", "/api/v1/app/{app_id}/msg/{msg_id}", "v1.message.get", READ, No),
    door("POST", "/api/v1/app/{app_id}/msg/{msg_id}/cancel", "v1.message.cancel", MANAGE, Yes),
    door("DELETE", "/api/v1/app/{app_id}/msg/{msg_id}/content", "v1.message.expunge-content", MANAGE, Yes),
    door("POST", "/api/v1/app/{app_id}/msg/bulk-expunge", "v1.message.bulk-expunge-content", MANAGE, Yes),
    door("POST", "/api/v1/app/{app_id}/msg/expunge-all-contents", "v1.message.expunge-all-contents", MANAGE, Yes),

    door("GET", "/api/v1/app/{app_id}/poller", "v1.message.poller.list", READ, No),
    door("POST", "/api/v1/app/{app_id}/poller", "v1.message.poller.create", MANAGE, Yes),
    door("PUT", "/api/v1/app/{app_id}/poller/{sink_id}", "v1.message.poller.update", MANAGE, Yes),
    door("DELETE", "/api/v1/app/{app_id}/poller/{sink_id}", "v1.message.poller.delete", MANAGE, Yes),
    door("GET", "/api/v1/app/{app_id}/poller/{sink_id}", "v1.message.poller.poll", POLL, No),
    door("GET", "/api/v1/app/{app_id}/poller/{sink_id}/consumer", "v1.message.poller.list-consumers", POLL, No),
    // How far a consumer has come is said with every poll, as often as there are messages.
    door("GET", "/api/v1/app/{app_id}/poller/{sink_id}/consumer/{consumer_id}", "v1.message.poller.consumer-poll", MOVE, No),
    door("DELETE", "/api/v1/app/{app_id}/poller/{sink_id}/consumer/{consumer_id}", "v1.message.poller.delete-consumer", MANAGE, Yes),
    door("POST", "/api/v1/app/{app_id}/poller/{sink_id}/consumer/{consumer_id}/commit", "v1.message.poller.consumer-commit", MOVE, No),
    door("POST", "/api/v1/app/{app_id}/poller/{sink_id}/consumer/{consumer_id}/seek", "v1.message.poller.consumer-seek", MOVE, Yes),
    door("GET", "/api/v1/auth/app/{app_id}/poller/{endpoint_id}/token", "v1.authentication.get-poller-token", MANAGE, Yes),
    door("POST", "/api/v1/auth/app/{app_id}/poller/{endpoint_id}/token/rotate", "v1.authentication.rotate-poller-token", MANAGE, Yes),

    door("GET", "/api/v1/app/{app_id}/attempt/endpoint/{endpoint_id}", "v1.message-attempt.list-by-endpoint", READ, No),
    door("GET", "/api/v1/app/{app_id}/attempt/msg/{msg_id}", "v1.message-attempt.list-by-msg", READ, No),
    door("GET", "/api/v1/app/{app_id}/tail", "v1.message-attempt.tail", READ, No),
    door("GET", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/msg", "v1.message-attempt.list-attempted-messages", READ, No),
    door("GET", "/api/v1/app/{app_id}/msg/{msg_id}/endpoint", "v1.message-attempt.list-attempted-destinations", READ, No),
    door("GET", "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}", "v1.message-attempt.get", READ, No),
    door("GET", "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/headers", "v1.message-attempt.get-headers", READ, No),
    door("DELETE", "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/content", "v1.message-attempt.expunge-content", MANAGE, Yes),
    door("POST", "/api/v1/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend", "v1.message-attempt.resend", REPLAY, Yes),

    door("GET", "/api/v1/app/{app_id}/dead-letter", "v1.dead-letter.list", READ, No),
    door("GET", "/api/v1/app/{app_id}/dead-letter/count", "v1.dead-letter.count", READ, No),
    door("GET", "/api/v1/app/{app_id}/dead-letter/{msg_id}/endpoint/{endpoint_id}", "v1.dead-letter.get", READ, No),
    door("POST", "/api/v1/app/{app_id}/dead-letter/replay", "v1.dead-letter.replay-all", REPLAY, Yes),
    door("POST", "/api/v1/app/{app_id}/dead-letter/{msg_id}/endpoint/{endpoint_id}/replay", "v1.dead-letter.replay", REPLAY, Yes),

    door("GET", "/api/v1/background-task", "v1.background-task.list", READ, No),
    door("GET", "/api/v1/background-task/{task_id}", "v1.background-task.get", READ, No),
    door("POST", "/api/v1/background-task/{task_id}/cancel", "v1.background-task.cancel", REPLAY, Yes),

    door("POST", "/api/v1/app/{app_id}/schedule", "v1.application.preview-schedule", READ, No),
    // They show and change nothing of anybody's.
    door("POST", "/api/v1/schedule", "v1.schedule.preview", Need::Anyone, No),
    door("GET", "/api/v1/preset", "v1.preset.list", Need::Anyone, No),
];

/// What is looked up is the path of a route, not what a caller wrote.
static BY_PATH: LazyLock<FxHashMap<&'static str, Vec<&'static Door>>> = LazyLock::new(|| {
    let mut by_path: FxHashMap<_, Vec<_>> = FxHashMap::default();
    for door in ALL {
        by_path.entry(door.path).or_default().push(door);
    }
    by_path
});

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_operation_of_the_document_is_on_the_list_and_no_other() {
        let (_, document) = super::super::routes().split_for_parts();
        let document = serde_json::to_value(&document).unwrap();
        let mut documented = BTreeSet::from([("GET".to_owned(), "/metrics".to_owned(), METRICS.to_owned())]);
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let operation = operation["operationId"].as_str().expect("a name").to_owned();
                documented.insert((method.to_uppercase(), path.clone(), operation));
            }
        }
        let listed: BTreeSet<_> =
            ALL.iter().map(|door| [door.method, door.path, door.operation].map(str::to_owned).into()).collect();
        assert_eq!(listed, documented, "whatever is added to the API says here what it takes to be let in");
        assert_eq!(ALL.len(), listed.len());
    }

    #[test]
    fn whatever_may_change_something_is_written_down() {
        for door in ALL.iter().filter(|door| door.audit == No) {
            // Or so much, and so often, that it would drown the rest.
            let changes_nothing = matches!(door.method, "GET" | "HEAD")
                || matches!(
                    door.operation,
                    "v1.message.create"
                        | "v1.message.create-batch"
                        | "v1.ingest.receive"
                        | "v1.message.poller.consumer-commit"
                        | "v1.schedule.preview"
                        | "v1.application.preview-schedule"
                );
            assert!(changes_nothing, "{}", door.operation);
        }
    }
}
