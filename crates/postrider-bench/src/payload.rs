//! The body that every scenario sends, the floor included: 1 KiB, but where large ones are measured.
//!
//! Run, sequence number and send time sit at fixed places, so that the receiver reads them without a JSON parser
//! and compares all other bytes with what was sent: a server that prints the payload anew is found out.

use std::io::Write;
use std::sync::{LazyLock, OnceLock};

pub const LEN: usize = 1024;

/// Lets bodies of one other length be sent and taken, for as long as this process lives.
pub fn allow(len: usize) {
    LARGE.get_or_init(|| template(len.max(LEN_MIN)));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Which measurement the message belongs to.
    pub run: u16,
    /// Which message of that measurement.
    pub seq: u32,
    /// When it was sent, or should have been, by [`crate::clock::monotonic_ns`].
    pub sent_ns: u64,
}

impl Stamp {
    /// Appends a body of this length to `out`.
    pub fn write_to(self, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(template_of(len).expect("the length was allowed before anything was sent"));
        let body = &mut out[start..];
        write!(&mut body[RUN], "{:04x}", self.run).expect("four hex digits fit");
        write!(&mut body[SEQ], "{:08x}", self.seq).expect("eight hex digits fit");
        write!(&mut body[SENT], "{:016x}", self.sent_ns).expect("sixteen hex digits fit");
    }

    /// `None` if any byte is not as it was sent.
    pub fn read_from(body: &[u8]) -> Option<Stamp> {
        let template = template_of(body.len())?;
        let untouched = [0..RUN.start, RUN.end..SEQ.start, SEQ.end..SENT.start, SENT.end..body.len()]
            .into_iter()
            .all(|part| body[part.clone()] == template[part]);
        if !untouched {
            return None;
        }
        Some(Stamp {
            run: u16::try_from(hex(&body[RUN])?).ok()?,
            seq: u32::try_from(hex(&body[SEQ])?).ok()?,
            sent_ns: hex(&body[SENT])?,
        })
    }
}

fn hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |value: u64, digit| Some(value << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

const RUN: std::ops::Range<usize> = 8..12;
const SEQ: std::ops::Range<usize> = 21..29;
const SENT: std::ops::Range<usize> = 37..53;

static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| template(LEN));
static LARGE: OnceLock<Vec<u8>> = OnceLock::new();
/// Room for the stamp and a few letters.
const LEN_MIN: usize = 128;

fn template_of(len: usize) -> Option<&'static [u8]> {
    if len == LEN { Some(&SMALL) } else { LARGE.get().map(Vec::as_slice).filter(|large| large.len() == len) }
}

fn template(len: usize) -> Vec<u8> {
    let head = br#"{"run":"0000","seq":"00000000","at":"0000000000000000","pad":""#;
    let tail = br#""}"#;
    let words = b"the quick brown rider jumps over the lazy queue, ";
    let mut body = Vec::with_capacity(len);
    body.extend_from_slice(head);
    body.extend(words.iter().cycle().take(len - head.len() - tail.len()));
    body.extend_from_slice(tail);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { run: 0x12, seq: 0xdead_beef, sent_ns: u64::MAX - 1 };

    #[test]
    fn a_stamp_comes_back_from_its_body() {
        let mut body = Vec::new();
        STAMP.write_to(LEN, &mut body);
        assert_eq!(body.len(), LEN);
        assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok(), "the body is JSON");
        assert_eq!(Stamp::read_from(&body), Some(STAMP));
    }

    #[test]
    fn a_body_changed_anywhere_is_not_read() {
        let mut body = Vec::new();
        STAMP.write_to(LEN, &mut body);
        for place in [0, RUN.start, RUN.end, SEQ.start, SEQ.end, SENT.start, SENT.end, LEN / 2, LEN - 1] {
            let mut changed = body.clone();
            changed[place] = b'~';
            assert_eq!(Stamp::read_from(&changed), None, "byte {place}");
        }
        assert_eq!(Stamp::read_from(&body[..LEN - 1]), None, "cut short");
    }

    #[test]
    fn a_body_of_another_length_is_read_once_it_is_allowed() {
        assert_eq!(Stamp::read_from(&template(5000)), None);
        allow(5000);
        let mut body = Vec::new();
        STAMP.write_to(5000, &mut body);
        assert_eq!(body.len(), 5000);
        assert_eq!(Stamp::read_from(&body), Some(STAMP));
        assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok(), "the body is JSON");
    }
}
