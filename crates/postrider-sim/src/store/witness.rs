//! Whoever stands by while the database commits: told of each change in the order of commits, at no cost of time.

use super::{log::What, tables::Tables};
use postrider_engine::{DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, policy::DeathReason};
use postrider_store::{Application, DeliveryState, Endpoint, NewMessage, Settlement, Tenure};
use std::sync::Arc;

/// Told which node did it, and what. It must ask nothing of the database.
pub type Witness = Arc<dyn Fn(usize, &Seen<'_>) + Send + Sync>;

pub enum Seen<'a> {
    Noted(What),
    Accepted {
        message: MessageKey,
        new: &'a NewMessage,
        order: Option<OrderKey>,
    },
    Settled {
        tenure: Tenure,
        settlement: &'a Settlement,
    },
    /// A resend, or a new cycle.
    Queued {
        id: DeliveryId,
        cycle: u32,
        due: Timestamp,
    },
    /// Not by a settlement.
    Ended {
        id: DeliveryId,
        why: DeathReason,
        /// By the clock of whoever decided it.
        at: Timestamp,
    },
    HealthReset {
        endpoint: EndpointKey,
    },
    Application(&'a Application),
    Endpoint(&'a Endpoint),
    EndpointGone {
        endpoint: EndpointKey,
    },
    Loaded {
        endpoint: EndpointKey,
        count: usize,
    },
}

/// The witness, if there is one, and who is at work just now.
#[derive(Default)]
pub struct Gallery {
    witness: Option<Witness>,
    pub node: usize,
    /// What is changed now is told of as a settlement.
    pub settling: bool,
}

impl Gallery {
    pub fn invite(&mut self, witness: Witness) {
        self.witness = Some(witness);
    }

    pub fn tell_of(&self, node: usize, seen: &Seen<'_>) {
        if let Some(witness) = &self.witness {
            witness(node, seen);
        }
    }

    pub fn tell(&self, seen: &Seen<'_>) {
        if let Some(witness) = &self.witness {
            witness(self.node, seen);
        }
    }
}

impl Tables {
    /// Everything about an application, as it stands now.
    pub fn tell_settings(&self, app: postrider_engine::AppKey) {
        if let Some(row) = self.living_application(app) {
            self.gallery.tell(&Seen::Application(&row.record));
        }
        for (key, row) in self.endpoints.iter().filter(|(_, row)| row.record.app == app) {
            match row.deleted_at {
                None => self.gallery.tell(&Seen::Endpoint(&row.record)),
                Some(_) => self.gallery.tell(&Seen::EndpointGone { endpoint: *key }),
            }
        }
    }

    /// How every delivery stands.
    pub fn each_delivery(&self, mut see: impl FnMut(MessageKey, EndpointKey, DeliveryState)) {
        for (message, row) in &self.messages {
            for endpoint in row.owed.iter() {
                let waits = self.waiting(super::tables::scheduled(*endpoint, *message));
                let dead =
                    self.dead.get(&(*endpoint, *message)).filter(|dead| dead.standing != super::tables::Standing::Over);
                let state = match (waits, dead) {
                    (Some(waits), _) if waits.progress.attempts > 0 => DeliveryState::Sending { due: waits.due },
                    (Some(waits), _) => DeliveryState::Pending { due: Some(waits.due) },
                    (None, _) if row.has_arrived_at(*endpoint) => DeliveryState::Delivered,
                    (None, Some(dead)) => DeliveryState::Dead { at: dead.at, reason: dead.reason },
                    (None, None) => DeliveryState::Pending { due: None },
                };
                see(*message, *endpoint, state);
            }
        }
    }
}
