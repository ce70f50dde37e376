//! How a delivery or an attempt stands, in the contract's numbers and words.

use postrider_engine::{
    Timestamp,
    policy::{Class, DeathReason},
};
use postrider_store::{DeliveryState, StateKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    Success,
    Pending,
    Fail,
    Sending,
    Canceled,
}

impl MessageStatus {
    const ALL: [Self; 5] = [Self::Success, Self::Pending, Self::Fail, Self::Sending, Self::Canceled];

    pub fn of_attempt(class: Class) -> Self {
        match class {
            Class::Delivered => Self::Success,
            Class::Transient | Class::Ambiguous | Class::Permanent | Class::Gone => Self::Fail,
        }
    }

    pub fn of_delivery(state: DeliveryState) -> Self {
        match state {
            DeliveryState::Pending { .. } => Self::Pending,
            DeliveryState::Sending { .. } => Self::Sending,
            DeliveryState::Delivered => Self::Success,
            DeliveryState::Dead { reason: DeathReason::Cancelled, .. } => Self::Canceled,
            DeliveryState::Dead { .. } => Self::Fail,
        }
    }

    /// The state that a delivery with this status is in.
    pub fn state(self) -> StateKind {
        match self {
            Self::Success => StateKind::Delivered,
            Self::Pending => StateKind::Pending,
            Self::Fail => StateKind::Dead,
            Self::Sending => StateKind::Sending,
            Self::Canceled => StateKind::Cancelled,
        }
    }

    pub fn number(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Pending => 1,
            Self::Fail => 2,
            Self::Sending => 3,
            Self::Canceled => 4,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Pending => "pending",
            Self::Fail => "fail",
            Self::Sending => "sending",
            Self::Canceled => "canceled",
        }
    }
}

impl<'de> Deserialize<'de> for MessageStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u8::deserialize(deserializer)?;
        Self::ALL.into_iter().find(|status| status.number() == number).ok_or_else(|| de::Error::custom(StatusError))
    }
}

/// The hundreds of a status, as the contract writes them: 0 (no answer), 100, 200, 300, 400 or 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusClass(u16);

impl StatusClass {
    pub fn hundreds(self) -> u16 {
        self.0
    }

    fn read(number: u16) -> Option<Self> {
        (number <= 500 && number.is_multiple_of(100)).then_some(Self(number / 100))
    }
}

impl FromStr for StatusClass {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        text.parse().ok().and_then(Self::read).ok_or(())
    }
}

impl<'de> Deserialize<'de> for StatusClass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(u16::deserialize(deserializer)?)
            .ok_or_else(|| de::Error::custom("must be 0, 100, 200, 300, 400 or 500"))
    }
}

impl Serialize for MessageStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.number())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a number from 0 to 4")]
pub struct StatusError;

impl FromStr for MessageStatus {
    type Err = StatusError;

    fn from_str(text: &str) -> Result<Self, StatusError> {
        Self::ALL.into_iter().find(|status| status.number().to_string() == text).ok_or(StatusError)
    }
}

/// When a delivery will be tried next, as far as that is known.
pub fn next_attempt(state: DeliveryState) -> Option<Timestamp> {
    match state {
        DeliveryState::Pending { due } => due,
        DeliveryState::Sending { due } => Some(due),
        DeliveryState::Delivered | DeliveryState::Dead { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::policy::DeathReason;

    #[test]
    fn a_delivery_has_the_status_of_its_state() {
        let at = Timestamp::from_millis(1);
        for (state, number, text) in [
            (DeliveryState::Delivered, 0, "success"),
            (DeliveryState::Pending { due: None }, 1, "pending"),
            (DeliveryState::Dead { at, reason: DeathReason::Exhausted }, 2, "fail"),
            (DeliveryState::Sending { due: at }, 3, "sending"),
        ] {
            let status = MessageStatus::of_delivery(state);
            assert_eq!((status.number(), status.text()), (number, text), "{state:?}");
        }
    }

    #[test]
    fn only_the_numbers_of_the_contract_name_a_status() {
        for number in 0..=4u8 {
            assert_eq!(number.to_string().parse().map(MessageStatus::number), Ok(number));
        }
        for text in ["", "5", "-1", "00", "success", "1.0"] {
            assert_eq!(text.parse::<MessageStatus>(), Err(StatusError), "{text}");
        }
    }
}
