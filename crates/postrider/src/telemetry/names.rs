//! Every metric, once: its name, its kind and what it says.
//!
//! What `/metrics` explains comes from here, and tests hold that nothing else is exported, that the guide lists all of it,
//! and that the dashboard and the alerts ask for nothing that is not there.

pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// As Prometheus calls it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// Gives every metric of the process its explanation.
pub fn describe() {
    for Metric { name, kind, help } in METRICS {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *help),
            Kind::Gauge => metrics::describe_gauge!(*name, *help),
            Kind::Histogram => metrics::describe_histogram!(*name, *help),
        }
    }
}

/// What has not happened yet is shown as zero, so that the first time is seen as a rise.
pub fn begin() {
    for name in [
        "postrider_breakers_opened_total",
        "postrider_stale_connection_retries_total",
        "postrider_log_lines_dropped_total",
        "postrider_spans_dropped_total",
        "postrider_alerts_total",
        "postrider_alerts_dropped_total",
    ] {
        metrics::counter!(name).increment(0);
    }
    for outcome in ["accepted", "repeated", "asked", "refused", "unknown", "limited", "busy", "failed"] {
        metrics::counter!("postrider_source_requests_total", "outcome" => outcome).increment(0);
    }
    for outcome in ["sent", "given_up"] {
        metrics::counter!("postrider_alert_mails_total", "outcome" => outcome).increment(0);
    }
    for reason in ["gone", "failing", "quarantined", "asked"] {
        metrics::counter!("postrider_endpoints_disabled_total", "reason" => reason).increment(0);
    }
}

/// The names of what is counted by a name.
pub struct ByName {
    /// An endpoint accepts nothing.
    pub accepted: Option<&'static str>,
    pub attempts: &'static str,
    pub deliveries: &'static str,
    pub attempt_duration: &'static str,
    pub delivery_duration: &'static str,
}

pub const BY_ENDPOINT: ByName = ByName {
    accepted: None,
    attempts: "postrider_endpoint_attempts_total",
    deliveries: "postrider_endpoint_deliveries_total",
    attempt_duration: "postrider_endpoint_attempt_duration_seconds",
    delivery_duration: "postrider_endpoint_delivery_duration_seconds",
};

pub const BY_APPLICATION: ByName = ByName {
    accepted: Some("postrider_application_messages_accepted_total"),
    attempts: "postrider_application_attempts_total",
    deliveries: "postrider_application_deliveries_total",
    attempt_duration: "postrider_application_attempt_duration_seconds",
    delivery_duration: "postrider_application_delivery_duration_seconds",
};

pub const BY_EVENT_TYPE: ByName = ByName {
    accepted: Some("postrider_event_type_messages_accepted_total"),
    attempts: "postrider_event_type_attempts_total",
    deliveries: "postrider_event_type_deliveries_total",
    attempt_duration: "postrider_event_type_attempt_duration_seconds",
    delivery_duration: "postrider_event_type_delivery_duration_seconds",
};

pub const ENDPOINT_WAITING: &str = "postrider_endpoint_deliveries_waiting";
pub const ENDPOINT_OLDEST_DUE: &str = "postrider_endpoint_oldest_due_seconds";
pub const ENDPOINT_BREAKER: &str = "postrider_endpoint_breaker_state";

pub const ATTEMPT_DURATION: &str = "postrider_attempt_duration_seconds";
pub const LATENESS: &str = "postrider_attempt_lateness_seconds";
pub const DELIVERY_DURATION: &str = "postrider_delivery_duration_seconds";
pub const DELIVERY_ATTEMPTS: &str = "postrider_delivery_attempts";

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help }
}

const fn histogram(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, help }
}

pub const METRICS: &[Metric] = &[
    counter("postrider_messages_accepted_total", "Messages stored; repetitions are not counted."),
    counter("postrider_messages_shed_total", "Messages turned away because enough were on their way in."),
    counter("postrider_messages_limited_total", "Messages turned away because their tenant handed in too many."),
    counter("postrider_source_requests_total", "Requests to sources' URLs, by what became of them."),
    counter(
        "postrider_source_log_dropped_total",
        "Refused requests to sources that were not noted in the source's log.",
    ),
    counter("postrider_attempts_total", "Attempts, by how they were judged."),
    histogram(ATTEMPT_DURATION, "How long attempts took, from the first lookup to the end of the answer."),
    histogram(LATENESS, "How much later than due attempts began, and whose doing that was."),
    counter("postrider_deliveries_total", "Deliveries that ended by an attempt or in their turn, by how."),
    histogram(DELIVERY_ATTEMPTS, "How many attempts a delivery took, when it ended."),
    histogram(DELIVERY_DURATION, "From when a message was accepted, or a delivery replayed, until it was delivered."),
    counter("postrider_dead_letters_total", "Deliveries given up, by the reason."),
    counter("postrider_breakers_opened_total", "Breakers that opened; failed probes are not counted again."),
    gauge("postrider_breakers", "Breakers that are not closed, by state."),
    counter("postrider_endpoints_disabled_total", "Endpoints disabled by a rule, by the reason."),
    counter("postrider_stale_connection_retries_total", "Requests sent again because a kept connection was closed."),
    gauge("postrider_requests_in_flight", "Requests on the network now."),
    gauge(
        "postrider_lanes_lag",
        "1 while more is ready to be sent than this node gets sent soon, so that new messages wait a moment.",
    ),
    counter(
        "postrider_page_violations_total",
        "Times that a browser refused something on a page of ours, as its policy says.",
    ),
    gauge("postrider_shards_owned", "Of all 256 shards, those that this node serves."),
    counter("postrider_clock_jumps_total", "Times that the clock was seen to jump by more than five seconds."),
    gauge("postrider_deliveries_waiting", "Deliveries that wait for their time, a slot or their endpoint."),
    gauge("postrider_oldest_due_seconds", "For how long the oldest of what is due has been, by whom it waits for."),
    gauge("postrider_dead_letters", "Dead letters in the shards of this node."),
    gauge("postrider_client_certificates_expiring", "Endpoints whose client certificate or authority ends soon."),
    gauge("postrider_server_certificate_expires_in_seconds", "Until the first certificate of this server ends."),
    counter("postrider_log_lines_dropped_total", "Log lines that were lost because nobody took them in time."),
    counter("postrider_spans_dropped_total", "Spans of traces that were lost because the collector was slow or away."),
    counter("postrider_alerts_total", "Alerts that were told."),
    counter("postrider_alerts_dropped_total", "Alerts that were not told because too many waited to be."),
    counter("postrider_alert_mails_total", "Letters about alerts, by what became of them."),
    counter("postrider_outbox_taken_total", "Rows taken over from the outbox."),
    gauge("postrider_outbox_up", "Whether the outbox can be reached."),
    gauge("postrider_outbox_relaying", "Whether this node is the one that takes rows over."),
    gauge("postrider_outbox_rows", "Rows in the outbox that are not taken over yet."),
    gauge("postrider_outbox_failed", "Rows in the outbox that can never be taken over."),
    gauge("postrider_outbox_lag_seconds", "How old the oldest row in the outbox is."),
    counter(BY_ENDPOINT.attempts, "Attempts of the busiest endpoints, by how they were judged."),
    counter(BY_ENDPOINT.deliveries, "Deliveries of the busiest endpoints that ended, by how."),
    histogram(BY_ENDPOINT.attempt_duration, "How long attempts of the busiest endpoints took."),
    histogram(BY_ENDPOINT.delivery_duration, "From accepted to delivered, for the busiest endpoints."),
    gauge(ENDPOINT_WAITING, "What waits for the busiest endpoints."),
    gauge(ENDPOINT_OLDEST_DUE, "For how long the oldest of what is due to the busiest endpoints has been."),
    gauge(ENDPOINT_BREAKER, "Breakers of the busiest endpoints: 0 closed, 1 half open, 2 open."),
    counter(BY_APPLICATION_ACCEPTED, "Messages of the busiest applications that were stored."),
    counter(BY_APPLICATION.attempts, "Attempts of the busiest applications, by how they were judged."),
    counter(BY_APPLICATION.deliveries, "Deliveries of the busiest applications that ended, by how."),
    histogram(BY_APPLICATION.attempt_duration, "How long attempts of the busiest applications took."),
    histogram(BY_APPLICATION.delivery_duration, "From accepted to delivered, for the busiest applications."),
    counter(BY_EVENT_TYPE_ACCEPTED, "Messages of the busiest event types that were stored."),
    counter(BY_EVENT_TYPE.attempts, "Attempts of the busiest event types, by how they were judged."),
    counter(BY_EVENT_TYPE.deliveries, "Deliveries of the busiest event types that ended, by how."),
    histogram(BY_EVENT_TYPE.attempt_duration, "How long attempts of the busiest event types took."),
    histogram(BY_EVENT_TYPE.delivery_duration, "From accepted to delivered, for the busiest event types."),
];

const BY_APPLICATION_ACCEPTED: &str = "postrider_application_messages_accepted_total";
const BY_EVENT_TYPE_ACCEPTED: &str = "postrider_event_type_messages_accepted_total";
