//! Doors for the fuzzer (`fuzz/`) to rooms that are shut to everyone else. Nothing but the fuzzer and the replay of
//! its corpus may call them.

use crate::{
    Content,
    rows::{codes, extra, extra::Extra, to_json},
};
use postrider_engine::Timestamp;

/// A message's content from its columns, and whether the payload is gone.
pub fn read_row(event_type: String, extra: Option<String>, payload: Option<Vec<u8>>) -> Option<(Content, bool)> {
    extra::content(event_type, extra, payload).ok()
}

/// The column `extra`, as a message with this content has it.
pub fn write_extra(content: &Content) -> String {
    let Content {
        event_type: _,
        event_id,
        channels,
        tags,
        content_type,
        ordering_key,
        deliver_at,
        received,
        payload: _,
    } = content;
    to_json(&Extra {
        event_id: event_id.clone(),
        channels: channels.clone(),
        tags: tags.clone(),
        content_type: content_type.clone(),
        ordering_key: ordering_key.clone(),
        deliver_at: deliver_at.map(Timestamp::as_millis),
        sequences: Vec::new(),
        trace: None,
        received: received.clone(),
    })
}

/// Every kind of code that can be read, written again.
pub fn codes_again(code: i64) -> [Option<i64>; 7] {
    [
        codes::trigger_of(code).ok().map(codes::trigger_code),
        codes::class_of(code).ok().map(codes::class_code),
        codes::rule_of(code).ok().map(codes::rule_code),
        codes::death_of(code).ok().map(codes::death_code),
        codes::disable_of(code).ok().map(codes::disable_code),
        codes::held_of(code).ok().map(codes::held_code),
        codes::status_of(code).ok().map(codes::status_code),
    ]
}
