//! The parts of a message that share a column.

use super::{Unreadable, from_json};
use crate::{Content, Received, TraceContext};
use bytes::Bytes;
use postrider_engine::{OrderKey, Timestamp};
use serde::{Deserialize, Serialize};

/// The parts of a message that most messages do not have.
#[derive(Default, PartialEq, Serialize, Deserialize)]
pub struct Extra {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<i64>,
    /// Endpoints, and the number that the message has there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<(i64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Received>,
}

impl Extra {
    /// Of a message's `extra` column.
    pub fn read(column: Option<&str>) -> Result<Self, Unreadable> {
        Ok(column.map(from_json).transpose()?.unwrap_or_default())
    }

    /// What goes along of the headers that it came with.
    pub fn passed_on(received: Option<Received>) -> Vec<(String, String)> {
        received.map(|received| received.passed_on).unwrap_or_default()
    }

    pub fn order(&self) -> Option<OrderKey> {
        self.ordering_key.as_deref().map(OrderKey::of)
    }
}

/// The order key in a message's `extra` column.
pub fn order_of(extra: Option<&str>) -> Result<Option<OrderKey>, Unreadable> {
    Ok(Extra::read(extra)?.order())
}

/// Puts a message's content together again from its columns.
pub fn content(
    event_type: String,
    extra: Option<String>,
    payload: Option<Vec<u8>>,
) -> Result<(Content, bool), Unreadable> {
    let extra = Extra::read(extra.as_deref())?;
    let gone = payload.is_none();
    let content = Content {
        event_type,
        event_id: extra.event_id,
        channels: extra.channels,
        tags: extra.tags,
        content_type: extra.content_type,
        ordering_key: extra.ordering_key,
        deliver_at: extra.deliver_at.map(Timestamp::from_millis),
        received: extra.received,
        payload: payload.map(Bytes::from).unwrap_or_default(),
    };
    Ok((content, gone))
}
