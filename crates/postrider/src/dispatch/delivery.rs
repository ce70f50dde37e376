//! The way of one delivery, from claimed to settled.

use crate::{
    clock,
    directory::{Directory, EndpointEntry},
    ids::{IdCodec, Kind},
    transport::{Exchange, Request, Transport},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use postrider_engine::{
    Answer, Fault, Outcome, Timestamp, Trigger,
    lanes::Parcel,
    outcome::Timeouts,
    policy::{self, Class, DeathReason, DisableReason, Next, Policy, Rule, Verdict},
};
use postrider_signature::{SVIX_HEADERS, WEBHOOK_HEADERS, sign};
use postrider_store::{AttemptRecord, Letter, Settlement};
use rand::{SeedableRng, rngs::StdRng};
use std::sync::{Arc, Mutex, PoisonError};

pub type Cargo = Arc<Letter>;

/// The number of the try, counted from 1 in each cycle.
const ATTEMPT_HEADER: &str = "webhook-attempt";

/// Carries letters to their endpoints.
pub struct Carrier {
    directory: Arc<Directory>,
    transport: Transport,
    ids: IdCodec,
    policy: Policy,
    rng: Mutex<StdRng>,
    meters: Meters,
}

impl Carrier {
    pub fn new(directory: Arc<Directory>, transport: Transport, ids: IdCodec) -> Self {
        Self {
            directory,
            transport,
            ids,
            policy: Policy::default(),
            rng: Mutex::new(StdRng::try_from_rng(&mut rand::rngs::SysRng).expect("the system gives random numbers")),
            meters: Meters::new(),
        }
    }

    /// Tries once, and says what becomes of the delivery.
    pub async fn deliver(&self, parcel: Parcel<Cargo>) -> Settlement {
        let started = clock::now();
        if self.policy.is_expired(parcel.progress, parcel.queued_at, started) {
            return self.end_untried(parcel, DeathReason::Expired, started);
        }
        let endpoint = match self.directory.endpoint(parcel.id.endpoint).await {
            Ok(Some(endpoint)) if endpoint.is_whole => endpoint,
            Ok(None) => return self.end_untried(parcel, DeathReason::EndpointGone, started),
            // Our own trouble: nobody was called, and nothing is charged.
            Ok(Some(_)) | Err(_) => {
                return self.settle(parcel, None, &Outcome::Failed(Fault::LocalResource), (started, started));
            }
        };
        let Some(payload) = parcel.cargo.payload.clone() else {
            return self.end_untried(parcel, DeathReason::Expired, started);
        };
        let exchange = self.exchange(&endpoint, &parcel, payload, started).await;
        let ended = started.plus(exchange.duration);
        let sent = Sent { url: Arc::clone(&endpoint.shown_url), started, exchange: &exchange };
        self.settle(parcel, Some(sent), &exchange.outcome, (started, ended))
    }

    async fn exchange(
        &self,
        endpoint: &EndpointEntry,
        parcel: &Parcel<Cargo>,
        body: Bytes,
        now: Timestamp,
    ) -> Exchange {
        match &endpoint.target {
            Ok(url) => {
                let headers = self.headers(endpoint, parcel, &body, now);
                self.transport.post(Request { url, headers, body, timeouts: Timeouts::default() }).await
            }
            Err(_) => Exchange::forbidden(),
        }
    }

    /// The timestamp and the signature are fresh on every try; id and body are always the same.
    fn headers(&self, endpoint: &EndpointEntry, parcel: &Parcel<Cargo>, body: &[u8], now: Timestamp) -> HeaderMap {
        let id = self.ids.encode(Kind::Message, parcel.id.message.raw());
        let timestamp = now.as_millis().div_euclid(1_000);
        let signature = sign(&endpoint.signing_keys(now), &id, timestamp, body);
        let own = |value: String| HeaderValue::try_from(value).expect("base62, base64 and digits fit in a header");
        let (id, timestamp, signature) = (own(id), HeaderValue::from(timestamp), own(signature));

        let mut headers = endpoint.headers.clone();
        headers.reserve(10);
        for names in [WEBHOOK_HEADERS, SVIX_HEADERS] {
            headers.insert(HeaderName::from_static(names.id), id.clone());
            headers.insert(HeaderName::from_static(names.timestamp), timestamp.clone());
            headers.insert(HeaderName::from_static(names.signature), signature.clone());
        }
        headers.insert(HeaderName::from_static(ATTEMPT_HEADER), HeaderValue::from(parcel.progress.attempts + 1));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("Postrider/", env!("CARGO_PKG_VERSION"))));
        let content_type = match &parcel.cargo.content_type {
            Some(given) => HeaderValue::try_from(given).ok(),
            None => None,
        };
        headers
            .insert(header::CONTENT_TYPE, content_type.unwrap_or_else(|| HeaderValue::from_static("application/json")));
        headers
    }

    fn settle(
        &self,
        parcel: Parcel<Cargo>,
        sent: Option<Sent<'_>>,
        outcome: &Outcome,
        times: (Timestamp, Timestamp),
    ) -> Settlement {
        let verdict = {
            let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
            policy::judge(&self.policy, parcel.id.trigger, parcel.progress, outcome, times, &mut *rng)
        };
        let postponed = matches!(verdict.next, Next::Postponed { .. });
        let progress = verdict.progress;
        let attempt = sent.filter(|_| !postponed).map(|sent| sent.record(verdict, outcome));
        self.meters.count(verdict, attempt.as_ref());
        let status = attempt.as_ref().and_then(|attempt| attempt.status);
        tracing::debug!(
            message = parcel.id.message.raw(),
            endpoint = parcel.id.endpoint.raw(),
            attempt = progress.attempts,
            status,
            class = ?verdict.class,
            rule = ?verdict.rule,
            "attempt settled"
        );
        let disable_endpoint = verdict.class == Class::Gone && parcel.id.trigger == Trigger::Scheduled;
        if disable_endpoint {
            tracing::warn!(
                endpoint = self.ids.id_of(parcel.id.endpoint),
                "the endpoint says it is gone, and is disabled"
            );
        }
        Settlement {
            id: parcel.id,
            handed: parcel.handed,
            cycle: parcel.cycle,
            progress,
            at: times.1,
            attempt,
            next: verdict.next,
            order: parcel.order,
            health: None,
            disable: disable_endpoint.then_some(DisableReason::Gone),
        }
    }

    fn end_untried(&self, parcel: Parcel<Cargo>, reason: DeathReason, at: Timestamp) -> Settlement {
        let next = match parcel.id.trigger {
            Trigger::Scheduled => Next::Dead(reason),
            Trigger::Manual => Next::Nothing,
        };
        if let Next::Dead(reason) = next {
            self.meters.count_death(reason);
        }
        Settlement {
            id: parcel.id,
            handed: parcel.handed,
            cycle: parcel.cycle,
            progress: parcel.progress,
            at,
            attempt: None,
            next,
            order: parcel.order,
            health: None,
            disable: None,
        }
    }
}

/// A request that was made.
struct Sent<'e> {
    url: Arc<str>,
    started: Timestamp,
    exchange: &'e Exchange,
}

impl Sent<'_> {
    fn record(self, verdict: Verdict, outcome: &Outcome) -> AttemptRecord {
        AttemptRecord {
            started_at: self.started,
            duration: self.exchange.duration,
            url: Arc::clone(&self.url),
            status: match outcome {
                Outcome::Answered(answer) => Some(answer.status),
                Outcome::Failed(_) => None,
            },
            response: self.response(verdict, outcome),
            class: verdict.class,
            rule: verdict.rule,
            held: None,
        }
    }

    /// What is kept of the answer: its body, or in words why there is none.
    fn response(&self, verdict: Verdict, outcome: &Outcome) -> Bytes {
        match (outcome, verdict.rule) {
            (Outcome::Answered(Answer { location: Some(location), status, .. }), Rule::Redirect) => {
                Bytes::from(format!("{status}: redirects are not followed; the receiver points to {location}"))
            }
            (Outcome::Answered(_), _) => self.exchange.body.clone(),
            (Outcome::Failed(_), _) => self.exchange.detail.clone().map(Bytes::from).unwrap_or_default(),
        }
    }
}

/// The counters of all attempts, looked up once.
struct Meters {
    delivered: metrics::Counter,
    transient: metrics::Counter,
    ambiguous: metrics::Counter,
    permanent: metrics::Counter,
    gone: metrics::Counter,
    duration: metrics::Histogram,
}

impl Meters {
    fn new() -> Self {
        let attempts = |class| metrics::counter!("postrider_attempts_total", "class" => class);
        Self {
            delivered: attempts("delivered"),
            transient: attempts("transient"),
            ambiguous: attempts("ambiguous"),
            permanent: attempts("permanent"),
            gone: attempts("gone"),
            duration: metrics::histogram!("postrider_attempt_duration_seconds"),
        }
    }

    fn count(&self, verdict: Verdict, attempt: Option<&AttemptRecord>) {
        let Some(attempt) = attempt else { return };
        self.duration.record(attempt.duration);
        match verdict.class {
            Class::Delivered => self.delivered.increment(1),
            Class::Transient => self.transient.increment(1),
            Class::Ambiguous => self.ambiguous.increment(1),
            Class::Permanent => self.permanent.increment(1),
            Class::Gone => self.gone.increment(1),
        }
        if let Next::Dead(reason) = verdict.next {
            self.count_death(reason);
        }
    }

    fn count_death(&self, reason: DeathReason) {
        let reason = match reason {
            DeathReason::Permanent => "permanent",
            DeathReason::Exhausted => "exhausted",
            DeathReason::Expired => "expired",
            DeathReason::EndpointGone => "endpoint_gone",
            DeathReason::Cancelled => "cancelled",
            DeathReason::Breaker => "breaker",
        };
        metrics::counter!("postrider_dead_letters_total", "reason" => reason).increment(1);
    }
}
