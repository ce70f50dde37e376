//! What is counted. The only labels are names of sources, which the receiver chooses, and reasons of a closed list.

use crate::{Outcome, Standing, Timestamp, sequence::Arrival};

pub(crate) fn outcome(source: &str, outcome: &Outcome) {
    let source = source.to_owned();
    match outcome {
        Outcome::Accepted { arrival } => {
            metrics::counter!("postrider_inbox_accepted_total", "source" => source.clone()).increment(1);
            match arrival {
                None | Some(Arrival::InOrder) => {}
                Some(Arrival::Gap { first, last }) => {
                    metrics::counter!("postrider_inbox_gaps_total", "source" => source.clone()).increment(1);
                    metrics::counter!("postrider_inbox_skipped_total", "source" => source)
                        .increment((last - first).saturating_add(1));
                }
                Some(Arrival::Late | Arrival::Restarted | Arrival::Repeated) => {
                    metrics::counter!("postrider_inbox_out_of_order_total", "source" => source).increment(1);
                }
            }
        }
        Outcome::Duplicate => metrics::counter!("postrider_inbox_duplicates_total", "source" => source).increment(1),
        Outcome::Refused(fault) => refused(source, fault.reason()),
        Outcome::TooLarge { .. } => refused(source, "too-large"),
        Outcome::Full { .. } => refused(source, "full"),
        Outcome::StoreOut => refused(source, "store-out"),
    }
}

fn refused(source: String, reason: &'static str) {
    metrics::counter!("postrider_inbox_refused_total", "source" => source, "reason" => reason).increment(1);
}

pub(crate) fn processed(source: &str) {
    metrics::counter!("postrider_inbox_processed_total", "source" => source.to_owned()).increment(1);
}

/// An attempt, whatever follows it.
pub(crate) fn failed(source: &str) {
    metrics::counter!("postrider_inbox_failed_total", "source" => source.to_owned()).increment(1);
}

pub(crate) fn dead(source: &str) {
    metrics::counter!("postrider_inbox_dead_total", "source" => source.to_owned()).increment(1);
}

pub(crate) fn lease_lost(source: &str) {
    metrics::counter!("postrider_inbox_leases_lost_total", "source" => source.to_owned()).increment(1);
}

/// An effect in a caller's transaction, before that commits.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn effect<T>(source: &str, processed: &crate::Processed<T>) {
    let source = source.to_owned();
    match processed {
        crate::Processed::Ran(_) => metrics::counter!("postrider_inbox_effects_total", "source" => source).increment(1),
        crate::Processed::SeenBefore => {
            metrics::counter!("postrider_inbox_effects_seen_total", "source" => source).increment(1);
        }
    }
}

pub(crate) fn standing(standing: &Standing, now: Timestamp) {
    metrics::gauge!("postrider_inbox_queued").set(standing.queued as f64);
    metrics::gauge!("postrider_inbox_queued_bytes").set(standing.queued_bytes as f64);
    metrics::gauge!("postrider_inbox_dead").set(standing.dead as f64);
    metrics::gauge!("postrider_inbox_lag_seconds").set(standing.lag(now).as_secs_f64());
}
