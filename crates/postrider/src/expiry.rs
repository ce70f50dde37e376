//! Certificates that are about to end, said in time.
//!
//! Deliveries of an endpoint whose client certificate has expired fail one after the other, and so does every call of our
//! own API. Both are known weeks before. Once a day they are looked at and named in the log, and counted in the metrics.

use crate::{
    clock::Clock,
    config::TlsFiles,
    ids::IdCodec,
    transport::client_tls::{CertificateFacts, facts},
    vault::Vault,
};
use postrider_engine::{AppKey, EndpointKey, Timestamp};
use postrider_store::{Cut, Endpoint, Order, Page, Store, StoreError};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tracing::warn;

/// How soon something ends that is worth saying so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Soon {
    Expired,
    Day,
    Week,
    Month,
}

impl Soon {
    pub const ALL: [Self; 4] = [Self::Expired, Self::Day, Self::Week, Self::Month];

    pub fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Expired => "has expired",
            Self::Day => "expires within a day",
            Self::Week => "expires within a week",
            Self::Month => "expires within thirty days",
        }
    }
}

/// `None`: not soon.
pub fn soon(not_after: Timestamp, now: Timestamp) -> Option<Soon> {
    let left = not_after.as_millis().saturating_sub(now.as_millis());
    match left {
        ..=0 => Some(Soon::Expired),
        left if left <= DAY_MS => Some(Soon::Day),
        left if left <= 7 * DAY_MS => Some(Soon::Week),
        left if left <= 30 * DAY_MS => Some(Soon::Month),
        _ => None,
    }
}

/// Of all certificates in a file, the one that ends first. `None`: there is none that can be read.
pub fn first_to_end(pem: &[u8]) -> Option<CertificateFacts> {
    let text = std::str::from_utf8(pem).ok()?;
    facts(text).ok()?.into_iter().min_by_key(|facts| facts.not_after)
}

pub struct Lookout {
    pub store: Arc<dyn Store>,
    pub vault: Arc<Vault>,
    pub ids: IdCodec,
    /// What our own API is served with.
    pub own: Option<TlsFiles>,
    pub clock: Clock,
}

impl Lookout {
    /// For as long as the server runs.
    pub async fn keep(self) {
        let (mut own_next, mut next) = (Instant::now(), Instant::now());
        let mut is_counted = false;
        loop {
            let now = Instant::now();
            if own_next <= now {
                own_next = now + LOOK_AGAIN;
                self.look_at_own();
            }
            // Of nodes that share a database, one says it for all.
            if !self.store.leads() {
                next = now;
                if std::mem::take(&mut is_counted) {
                    show(Counts::default());
                }
            } else if next <= now {
                next = now + LOOK_AGAIN;
                match self.look_at_endpoints().await {
                    Ok(counts) => {
                        is_counted = true;
                        show(counts);
                    }
                    Err(error) => {
                        next = now + TRY_AGAIN;
                        warn!(%error, "the endpoints' certificates could not be looked at; trying again in an hour");
                    }
                }
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    fn look_at_own(&self) {
        let Some(files) = &self.own else { return };
        let Some(facts) = std::fs::read(&files.certificate).ok().and_then(|pem| first_to_end(&pem)) else { return };
        let now = self.clock.now();
        let left = facts.not_after.as_millis().saturating_sub(now.as_millis());
        metrics::gauge!("postrider_server_certificate_expires_in_seconds").set(left as f64 / 1_000.0);
        if let Some(soon) = soon(facts.not_after, now) {
            warn!(file = files.certificate.display().to_string(), "the API's own certificate {}", soon.words());
        }
    }

    async fn look_at_endpoints(&self) -> Result<Counts, StoreError> {
        let mut counts = Counts::default();
        let mut after_app: Option<AppKey> = None;
        loop {
            let apps = self.store.applications(page(after_app)).await?;
            let Some(last) = apps.last() else { return Ok(counts) };
            after_app = Some(last.key);
            for app in apps.iter().map(|app| app.key) {
                let mut after: Option<EndpointKey> = None;
                loop {
                    let endpoints = self.store.endpoints(app, page(after)).await?;
                    let Some(last) = endpoints.last() else { break };
                    after = Some(last.key);
                    for soon in endpoints.iter().filter_map(|endpoint| self.look_at(endpoint)) {
                        counts[soon as usize] += 1;
                    }
                }
            }
        }
    }

    fn look_at(&self, endpoint: &Endpoint) -> Option<Soon> {
        // Most have none, and that can be seen from outside.
        if !Vault::may_hold_more(&endpoint.sealed) {
            return None;
        }
        let pem = self.vault.open(endpoint.key, &endpoint.sealed).ok()?.client_tls?;
        let texts = pem.identity.iter().map(|text| text.as_str()).chain(pem.authorities.as_deref());
        let ends = texts.filter_map(|text| first_to_end(text.as_bytes())).map(|facts| facts.not_after).min()?;
        let soon = soon(ends, self.clock.now())?;
        let id = self.ids.id_of(endpoint.key);
        warn!(endpoint.id = id, "the client certificate or the authority of an endpoint {}", soon.words());
        Some(soon)
    }
}

/// Of each kind of `Soon`, how many.
type Counts = [u32; Soon::ALL.len()];

fn show(counts: Counts) {
    for (soon, count) in Soon::ALL.into_iter().zip(counts) {
        metrics::gauge!("postrider_client_certificates_expiring", "within" => soon.name()).set(f64::from(count));
    }
}

fn page<K>(after: Option<K>) -> Page<K> {
    Page { from: after.map(Cut::Past), order: Order::Ascending, limit: PAGE }
}

const LOOK_AGAIN: Duration = Duration::from_secs(86_400);
const TRY_AGAIN: Duration = Duration::from_secs(3_600);
/// How often it is asked whether this node speaks for all.
const ASK_AGAIN: Duration = Duration::from_secs(60);
const DAY_MS: i64 = 86_400_000;
const PAGE: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_within_a_month_is_soon() {
        let now = Timestamp::from_millis(1_000_000_000_000);
        let at = |days: i64, ms: i64| soon(Timestamp::from_millis(now.as_millis() + days * DAY_MS + ms), now);
        for (days, ms, expected) in [
            (-400, 0, Some(Soon::Expired)),
            (0, 0, Some(Soon::Expired)),
            (0, 1, Some(Soon::Day)),
            (1, 0, Some(Soon::Day)),
            (1, 1, Some(Soon::Week)),
            (7, 0, Some(Soon::Week)),
            (7, 1, Some(Soon::Month)),
            (30, 0, Some(Soon::Month)),
            (30, 1, None),
            (4_000, 0, None),
        ] {
            assert_eq!(at(days, ms), expected, "{days} days and {ms} ms");
        }
        for (at, soon) in Soon::ALL.into_iter().enumerate() {
            assert_eq!(soon as usize, at);
        }
    }
}
