//! The way of one delivery, from claimed to settled.

use super::{
    meters::{Lateness, Meters},
    told::{Told, log_untried},
};
use crate::{
    clock::Clock,
    directory::{Directory, EndpointEntry, RulesOf},
    ids::{IdCodec, Kind},
    kept_headers::{KeepHeaders, KeptHeaders},
    oauth::{self, Bearers, Oauth},
    statistics::{Statistics, Tried},
    telemetry::{
        Tops, Traces,
        traces::{TRACEPARENT, TRACESTATE, Traced},
    },
    transport::{Exchange, Post, Request},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use postrider_engine::{
    Answer, Outcome, Timestamp, Trigger,
    lanes::{Held, Parcel},
    outcome::Timeouts,
    planted::{Bug, planted},
    policy::{self, Class, DeathReason, Next, Rule, Rules, SignatureForm, SignatureStyle, Verdict},
};
use postrider_signature::{
    SVIX_HEADERS, SigningKey, WEBHOOK_HEADERS, github_header, scheme_header, sign, stripe_header,
};
use postrider_store::{AttemptRecord, Letter, Settlement, Store, StoreError, Tenure, TraceContext, step};
use rand::{RngExt, rngs::StdRng};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use url::Url;

pub type Cargo = Arc<Letter>;

/// The number of the try, counted from 1 in each cycle.
const ATTEMPT_HEADER: HeaderName = HeaderName::from_static("webhook-attempt");

/// Which number the message has among those of its ordering key, or of a FIFO endpoint: counted from 1, without gaps.
const SEQUENCE_HEADER: HeaderName = HeaderName::from_static("webhook-sequence");

/// Whose delivery it is. A request for a new message that bears our own is one of ours that came back.
pub const LOOP_HEADER: HeaderName = HeaderName::from_static("postrider-loop");

/// What a redirect to another host takes along: nothing that is the endpoint's own, and no signature.
const KEPT_ACROSS_HOSTS: [HeaderName; 9] = [
    LOOP_HEADER,
    HeaderName::from_static(WEBHOOK_HEADERS.id),
    HeaderName::from_static(WEBHOOK_HEADERS.timestamp),
    HeaderName::from_static(SVIX_HEADERS.id),
    HeaderName::from_static(SVIX_HEADERS.timestamp),
    ATTEMPT_HEADER,
    SEQUENCE_HEADER,
    header::USER_AGENT,
    header::CONTENT_TYPE,
];

/// Carries letters to their endpoints.
pub struct Carrier {
    store: Arc<dyn Store>,
    directory: Arc<Directory>,
    post: Arc<dyn Post>,
    ids: IdCodec,
    clock: Clock,
    rng: Mutex<StdRng>,
    meters: Meters,
    bearers: Bearers,
    deployment: HeaderValue,
    statistics: Option<Arc<Statistics>>,
    traces: Option<Arc<Traces>>,
    keep_headers: KeepHeaders,
}

impl Carrier {
    pub fn new(
        store: Arc<dyn Store>,
        directory: Arc<Directory>,
        post: Arc<dyn Post>,
        ids: IdCodec,
        clock: Clock,
        rng: StdRng,
    ) -> Self {
        let deployment = HeaderValue::try_from(ids.deployment()).expect("digits fit in a header");
        let (rng, meters, bearers) = (Mutex::new(rng), Meters::new(Arc::default()), Bearers::default());
        let (statistics, traces, keep_headers) = (None, None, KeepHeaders::default());
        Self { store, directory, post, ids, clock, rng, meters, bearers, deployment, statistics, traces, keep_headers }
    }

    /// Counts what happens, for the charts.
    pub fn with_statistics(self, statistics: Arc<Statistics>) -> Self {
        Self { statistics: Some(statistics), ..self }
    }

    /// Counts also by name.
    pub fn with_tops(self, tops: Arc<Tops>) -> Self {
        Self { meters: Meters::new(tops), ..self }
    }

    /// With the headers of these attempts.
    pub fn keeping(self, keep_headers: KeepHeaders) -> Self {
        Self { keep_headers, ..self }
    }

    /// Without this nothing is traced.
    pub fn with_traces(self, traces: Option<Arc<Traces>>) -> Self {
        Self { traces, ..self }
    }

    /// Tries once, and says what becomes of the delivery.
    pub async fn deliver(&self, parcel: Parcel<Cargo>, leave: Leave) -> Settled {
        let found = self.rules_of(&parcel).await;
        // Not before: they may have been read for a while, and all that follows is counted from when the receiver was called.
        let started = self.clock.now();
        let (endpoint, rules) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return self.end_untried(parcel, DeathReason::EndpointGone, started),
            // Our own trouble: nobody was called, and nothing is charged.
            Err(_) => return Settled::untouched(&parcel, started),
        };
        // Its lane knows nothing of the limits that it has.
        if leave.lane_is_gone {
            return Settled { is_misplaced: true, ..Settled::untouched(&parcel, started) };
        }
        // It was paused a moment ago, and its lane has not heard of that yet. Whoever was told that it is paused must not
        // see it called after that.
        if endpoint.lane.parked && !planted(Bug::PauseIgnored) {
            return Settled::untouched(&parcel, started);
        }
        let expired = rules.policy.is_expired(parcel.progress, parcel.queued_at, started);
        if expired && parcel.id.trigger == Trigger::Scheduled {
            return self.end_untried(parcel, DeathReason::Expired, started);
        }
        let Some(payload) = parcel.cargo.payload.clone() else {
            return self.end_untried(parcel, DeathReason::Expired, started);
        };
        // The reads above may have taken long, and the lane may be someone else's by now.
        if !self.store.may_send(leave.tenure) && !planted(Bug::SendsWithoutLease) {
            return Settled::untouched(&parcel, started);
        }
        step!("send.begun");
        let begin = |traces: &Arc<Traces>| traces.attempting(parcel.cargo.trace.as_ref()?, started);
        let span = self.traces.as_ref().and_then(begin);
        let own = span.as_ref().map(Traced::context);
        let trace = own.as_ref().or(parcel.cargo.trace.as_ref());
        let exchange = self.exchange(&endpoint, &rules, &parcel, payload, (started, trace)).await;
        let times = (started, started.plus(exchange.duration));
        let verdict = {
            let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
            policy::judge(&rules.policy, parcel.id.trigger, parcel.progress, &exchange.outcome, times, &mut *rng)
        };
        step!("send.decided");
        let settled = self.settle((&parcel, trace), &endpoint, &exchange, verdict, times);
        let told = Told {
            parcel: &parcel,
            verdict: &verdict,
            attempt: settled.settlement.attempt.as_ref(),
            lateness: Lateness::of(&parcel, started),
            trace,
        };
        told.log(&self.ids);
        if let Some(span) = span {
            told.end(span, &self.ids, times.1);
        }
        settled
    }

    /// Ends a delivery whose turn came while the endpoint's breaker was open.
    pub fn end_by_breaker(&self, parcel: Parcel<Cargo>) -> Settled {
        self.end_untried(parcel, DeathReason::Breaker, self.clock.now())
    }

    /// The endpoint, and the rules of this delivery. `None`: the endpoint was deleted.
    async fn rules_of(&self, parcel: &Parcel<Cargo>) -> Result<Option<(Arc<EndpointEntry>, RulesOf)>, StoreError> {
        let Some(endpoint) = self.directory.endpoint(parcel.id.endpoint).await? else { return Ok(None) };
        if !endpoint.is_whole {
            return Err(StoreError::Database("the endpoint's secrets cannot be opened".to_owned()));
        }
        let rules = self.directory.rules(&endpoint, &parcel.cargo.event_type).await?;
        Ok(Some((endpoint, rules)))
    }

    async fn exchange(
        &self,
        endpoint: &EndpointEntry,
        rules: &Rules,
        parcel: &Parcel<Cargo>,
        body: Bytes,
        (now, trace): (Timestamp, Option<&TraceContext>),
    ) -> Exchange {
        match &endpoint.target {
            Ok(url) => {
                let headers = || {
                    let mut headers = self.headers(endpoint, parcel, &body, now);
                    add_trace(&mut headers, trace);
                    headers
                };
                let request = Request {
                    url,
                    headers: &headers,
                    body: body.clone(),
                    timeouts: rules.timeouts,
                    redirects_max: rules.redirects_max,
                    kept_across_hosts: &KEPT_ACROSS_HOSTS,
                    tls: endpoint.client_tls.as_ref(),
                };
                match &endpoint.oauth {
                    None => self.post.post(request).await,
                    Some(oauth) => Box::pin(self.exchange_with_token(endpoint, oauth, request, now)).await,
                }
            }
            Err(_) => Exchange::forbidden(),
        }
    }

    /// Never without a token. One that was kept and is refused may have been revoked, and is asked for anew, once. All of it
    /// is one attempt, and has one deadline.
    async fn exchange_with_token(
        &self,
        endpoint: &EndpointEntry,
        oauth: &Oauth,
        request: Request<'_>,
        now: Timestamp,
    ) -> Exchange {
        let (started, timeouts) = (Instant::now(), request.timeouts);
        let mut is_repeated = false;
        loop {
            let nonce = self.rng.lock().unwrap_or_else(PoisonError::into_inner).random();
            let left = || Timeouts { total: timeouts.total.saturating_sub(started.elapsed()), ..timeouts };
            let means = oauth::Means { post: &*self.post, timeouts: left(), now, nonce };
            let bearer = match self.bearers.bearer(endpoint.key, oauth, means).await {
                Ok(bearer) => bearer,
                Err(missing) => return missing.into_exchange(started.elapsed()),
            };
            let headers = || {
                let mut headers = (request.headers)();
                headers.insert(header::AUTHORIZATION, bearer.header.clone());
                headers
            };
            let body = request.body.clone();
            let mut exchange = self.post.post(Request { headers: &headers, body, timeouts: left(), ..request }).await;
            let is_refused = matches!(&exchange.outcome, Outcome::Answered(Answer { status: 401, .. }));
            // Another's refusal says nothing about it: it was not shown there.
            if is_refused && exchange.final_url.is_none() {
                self.bearers.was_refused(endpoint.key, oauth, &bearer).await;
                if !bearer.is_new && !is_repeated {
                    is_repeated = true;
                    continue;
                }
            }
            exchange.duration = started.elapsed();
            exchange.body = redacted(&exchange.body, [&bearer.header]);
            exchange.headers = without_credentials(&exchange.headers, &[&bearer.header]);
            return exchange;
        }
    }

    /// The timestamp and the signature are fresh on every try; id and body are always the same.
    fn headers(&self, endpoint: &EndpointEntry, parcel: &Parcel<Cargo>, body: &[u8], now: Timestamp) -> HeaderMap {
        let id = self.ids.encode(Kind::Message, parcel.id.message.raw());
        let timestamp = now.as_millis().div_euclid(1_000);
        let signature = sign(endpoint.signing_keys(now), &id, timestamp, body);
        let own = |value: String| HeaderValue::try_from(value).expect("base62, base64 and digits fit in a header");
        let (id, signature) = (own(id), own(signature));

        let mut headers = endpoint.headers.clone();
        headers.reserve(11 + parcel.cargo.headers.len());
        for (name, value) in &parcel.cargo.headers {
            // What the endpoint's owner says goes before what came with the message.
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
                && !endpoint.headers.contains_key(&name)
            {
                headers.append(name, value);
            }
        }
        for names in [WEBHOOK_HEADERS, SVIX_HEADERS] {
            headers.insert(HeaderName::from_static(names.id), id.clone());
            headers.insert(HeaderName::from_static(names.timestamp), HeaderValue::from(timestamp));
            headers.insert(HeaderName::from_static(names.signature), signature.clone());
        }
        for SignatureForm { style, header, id_header } in &endpoint.rules.signature {
            let keys: Vec<SigningKey> = endpoint.signing_keys(now).cloned().collect();
            let text = match style {
                // These are made with a secret that both ends share, or not at all.
                _ if !keys.iter().any(SigningKey::is_shared) => None,
                SignatureStyle::Stripe => Some(stripe_header(&keys, timestamp, body)),
                SignatureStyle::Scheme => Some(scheme_header(&keys, timestamp, body)),
                SignatureStyle::GitHub => github_header(&keys, body),
            };
            for (name, value) in [(Some(header), text.map(own)), (id_header.as_ref(), Some(id.clone()))] {
                // Only names that can be one were ever stored.
                if let (Some(Ok(name)), Some(value)) = (name.map(HeaderName::try_from), value) {
                    headers.insert(name, value);
                }
            }
        }
        headers.insert(LOOP_HEADER, self.deployment.clone());
        headers.insert(ATTEMPT_HEADER, HeaderValue::from(parcel.progress.attempts + 1));
        let sequence = parcel.cargo.sequences.iter().find(|(endpoint, _)| *endpoint == parcel.id.endpoint);
        if let Some((_, number)) = sequence {
            headers.insert(SEQUENCE_HEADER, HeaderValue::from(*number));
        }
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("Postrider/", env!("CARGO_PKG_VERSION"))));
        let content_type = match &parcel.cargo.content_type {
            Some(given) => HeaderValue::try_from(given).ok(),
            None => None,
        };
        headers
            .insert(header::CONTENT_TYPE, content_type.unwrap_or_else(|| HeaderValue::from_static("application/json")));
        headers
    }

    /// What went out and what came back, as far as it may be shown. Of the request it is made once more: the same goes in, so
    /// that the same comes out, and what arrives at once costs nothing.
    fn kept_headers(
        &self,
        (parcel, trace): (&Parcel<Cargo>, Option<&TraceContext>),
        endpoint: &EndpointEntry,
        exchange: &Exchange,
        started: Timestamp,
    ) -> Bytes {
        let Some(body) = parcel.cargo.payload.as_ref().filter(|_| !exchange.is_untried) else { return Bytes::new() };
        let mut sent = self.headers(endpoint, parcel, body, started);
        add_trace(&mut sent, trace);
        let mut own = endpoint.headers.clone();
        for name in parcel.cargo.headers.iter().filter_map(|(name, _)| HeaderName::try_from(name).ok()) {
            own.insert(name, HeaderValue::from_static(""));
        }
        if endpoint.oauth.is_some() {
            sent.insert(header::AUTHORIZATION, HeaderValue::from_static(""));
            own.insert(header::AUTHORIZATION, HeaderValue::from_static(""));
        }
        if exchange.final_url.as_deref().is_some_and(|led_to| !is_same_origin(&endpoint.shown_url, led_to)) {
            sent = KEPT_ACROSS_HOSTS.iter().filter_map(|name| Some((name.clone(), sent.get(name)?.clone()))).collect();
        }
        let answered = match &exchange.outcome {
            Outcome::Answered(_) => {
                Some(without_credentials(&exchange.headers, &endpoint.headers.values().collect::<Vec<_>>()))
            }
            Outcome::Failed(_) => None,
        };
        KeptHeaders::of(&sent, &own, answered.as_ref()).to_bytes()
    }

    fn settle(
        &self,
        (parcel, trace): (&Parcel<Cargo>, Option<&TraceContext>),
        endpoint: &EndpointEntry,
        exchange: &Exchange,
        verdict: Verdict,
        (started, ended): (Timestamp, Timestamp),
    ) -> Settled {
        let postponed = matches!(verdict.next, Next::Postponed { .. });
        let headers = &endpoint.headers;
        let sent = Sent { url: Arc::clone(&endpoint.shown_url), started, held: parcel.held, exchange, headers };
        let kept = match self.keep_headers.wants(verdict.class == Class::Delivered) && !postponed {
            true => self.kept_headers((parcel, trace), endpoint, exchange, started),
            false => Bytes::new(),
        };
        let attempt = (!postponed).then(|| sent.record(verdict, kept));
        if let Some(attempt) = &attempt {
            if let Some(statistics) = &self.statistics {
                count(statistics, parcel, verdict, attempt, ended);
            }
            self.meters.count(parcel, &verdict, Lateness::of(parcel, started), attempt.duration, ended);
        }
        let settlement =
            Settlement { progress: verdict.progress, attempt, next: verdict.next, ..untouched(parcel, ended) };
        let tells = !postponed || planted(Bug::ShortageTripsBreaker);
        Settled { settlement, verdict: Some(verdict).filter(|_| tells), is_sent: true, is_misplaced: false }
    }

    fn end_untried(&self, parcel: Parcel<Cargo>, reason: DeathReason, at: Timestamp) -> Settled {
        let next = match parcel.id.trigger {
            Trigger::Scheduled => Next::Dead(reason),
            Trigger::Manual => Next::Nothing,
        };
        if let Next::Dead(reason) = next {
            log_untried(&self.ids, &parcel, reason);
            self.meters.count_death(&parcel, reason, parcel.progress.attempts);
            if let Some(statistics) = &self.statistics {
                statistics.given_up(parcel.cargo.app, parcel.id.endpoint, at);
            }
        }
        let settlement = Settlement { next, ..untouched(&parcel, at) };
        Settled { settlement, verdict: None, is_sent: false, is_misplaced: false }
    }
}

fn count(statistics: &Statistics, parcel: &Parcel<Cargo>, verdict: Verdict, attempt: &AttemptRecord, at: Timestamp) {
    let (app, endpoint) = (parcel.cargo.app, parcel.id.endpoint);
    let arrived_after = (verdict.class == Class::Delivered).then(|| at.since(parcel.cargo.accepted_at));
    let (class, status, took) = (verdict.class, attempt.status, attempt.duration);
    statistics.tried(&Tried { app, endpoint, at, class, status, took, arrived_after });
    if let Next::Dead(_) = verdict.next {
        statistics.given_up(app, endpoint, at);
    }
}

fn add_trace(headers: &mut HeaderMap, trace: Option<&TraceContext>) {
    let Some(TraceContext { parent, state }) = trace else { return };
    for (name, value) in [(TRACEPARENT, Some(parent)), (TRACESTATE, state.as_ref())] {
        // Only what is well formed was ever stored.
        if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
            headers.insert(name, value);
        }
    }
}

/// What became of a parcel, and what it tells about its endpoint.
pub struct Settled {
    pub settlement: Settlement,
    /// `None`: nothing was learned about the endpoint.
    pub verdict: Option<Verdict>,
    /// Its receiver was called, as far as is known.
    pub is_sent: bool,
    /// Its lane is that of a deleted endpoint, and the endpoint is there: one of the two is not up to date.
    pub is_misplaced: bool,
}

/// What a parcel was let go with.
#[derive(Clone, Copy)]
pub struct Leave {
    pub tenure: Tenure,
    pub lane_is_gone: bool,
}

impl Settled {
    /// Nothing has happened: it is tried again soon, as if for the first time.
    pub fn untouched(parcel: &Parcel<Cargo>, now: Timestamp) -> Self {
        let mut settlement = untouched(parcel, now);
        settlement.progress.attempts += u32::from(planted(Bug::TroubleCharged));
        Self { settlement, verdict: None, is_sent: false, is_misplaced: false }
    }
}

fn untouched(parcel: &Parcel<Cargo>, at: Timestamp) -> Settlement {
    Settlement {
        id: parcel.id,
        handed: parcel.handed,
        cycle: parcel.cycle,
        progress: parcel.progress,
        at,
        attempt: None,
        next: Next::Postponed { due: at.plus(POSTPONEMENT) },
        order: parcel.order,
        health: None,
        disable: None,
    }
}

/// How long a delivery waits after trouble of our own.
const POSTPONEMENT: Duration = Duration::from_secs(1);

/// A request that was made.
struct Sent<'e> {
    url: Arc<str>,
    started: Timestamp,
    held: Option<Held>,
    exchange: &'e Exchange,
    /// The endpoint's own headers.
    headers: &'e HeaderMap,
}

impl Sent<'_> {
    fn record(self, verdict: Verdict, headers: Bytes) -> AttemptRecord {
        AttemptRecord {
            started_at: self.started,
            duration: self.exchange.duration,
            url: match &self.exchange.final_url {
                Some(led_to) => led_to.as_str().into(),
                None => Arc::clone(&self.url),
            },
            status: match &self.exchange.outcome {
                Outcome::Answered(answer) => Some(answer.status),
                Outcome::Failed(_) => None,
            },
            response: self.response(verdict),
            class: verdict.class,
            rule: verdict.rule,
            held: self.held,
            headers,
        }
    }

    /// What is kept of the answer: its body, or in words why there is none.
    fn response(&self, verdict: Verdict) -> Bytes {
        match (&self.exchange.outcome, verdict.rule) {
            (Outcome::Answered(Answer { location: Some(location), status, .. }), Rule::Redirect) => {
                Bytes::from(format!("{status}: redirects are not followed; the receiver points to {location}"))
            }
            (Outcome::Answered(Answer { location: Some(location), status, .. }), Rule::RedirectRefused) => {
                Bytes::from(format!("{status}: this redirect is not followed; it points to {location}"))
            }
            (Outcome::Answered(_), _) => redacted(&self.exchange.body, self.headers.values()),
            (Outcome::Failed(_), _) => self.exchange.detail.clone().map(Bytes::from).unwrap_or_default(),
        }
    }
}

/// A receiver may send back what it was sent, and more people see answers than credentials.
fn redacted<'h>(body: &Bytes, headers: impl IntoIterator<Item = &'h HeaderValue>) -> Bytes {
    let credentials = headers.into_iter().filter(|value| value.is_sensitive());
    let words = credentials.flat_map(|value| {
        let words = value.as_bytes().split(|byte| *byte == b' ').map(<[u8]>::to_vec);
        words.chain(password(value.as_bytes()))
    });
    let mut body = body.clone();
    for word in words.filter(|word| word.len() >= CREDENTIAL_LEN_MIN) {
        while let Some(at) = body.windows(word.len()).position(|window| window == word) {
            body = [&body[..at], REDACTED, &body[at + word.len()..]].concat().into();
        }
    }
    body
}

fn is_same_origin(one: &str, other: &str) -> bool {
    let origin = |text| Url::parse(text).ok().map(|url| url.origin());
    origin(one) == origin(other)
}

fn without_credentials(answered: &HeaderMap, own: &[&HeaderValue]) -> HeaderMap {
    let blotted = |(name, value): (&HeaderName, &HeaderValue)| {
        let blotted = redacted(&Bytes::copy_from_slice(value.as_bytes()), own.iter().copied());
        (name.clone(), HeaderValue::from_bytes(&blotted).unwrap_or_else(|_| HeaderValue::from_static("")))
    };
    answered.iter().map(blotted).collect()
}

/// That a receiver reads out of `Basic ...`.
fn password(header: &[u8]) -> Option<Vec<u8>> {
    let both = BASE64_STANDARD.decode(header.strip_prefix(b"Basic ")?).ok()?;
    let colon = both.iter().position(|byte| *byte == b':')?;
    Some(both[colon + 1..].to_vec())
}

const REDACTED: &[u8] = b"***";
/// Shorter words are found in any text.
const CREDENTIAL_LEN_MIN: usize = 8;
