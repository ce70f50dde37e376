//! Finds out why a signature does not match, by trying what usually goes wrong.
//!
//! For a person who sets a receiver up and has kept a request; never for deciding whether to believe one.

use std::fmt;

use super::{Form, Received, Refusal, Source, SourceKey};

/// What would have to be undone for the signature to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    EndLost,
    EndAdded,
    LineBreaks,
    JsonSpaces,
    ByteOrderMark,
    SecretSpaces,
    SecretEncoded,
    SecretDecoded,
    Time,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EndLost => "the body has lost the line break at its end",
            Self::EndAdded => "spaces or line breaks were added at the end of the body",
            Self::LineBreaks => "the line breaks in the body were rewritten",
            Self::JsonSpaces => "the body is JSON that was parsed and written again: keep the bytes as they came",
            Self::ByteOrderMark => "a byte order mark was put before the body, or taken away",
            Self::SecretSpaces => "the secret has spaces or a line break around it",
            Self::SecretEncoded => "the secret is base64 and must be decoded first",
            Self::SecretDecoded => "the secret's text itself is the key, with its prefix",
            Self::Time => "the signature holds, only its time does not",
        })
    }
}

impl Source {
    /// Why a request is refused, as far as that can be found out by trying: nothing, if it is not or if nobody knows.
    pub fn explain(&self, request: &Received<'_, '_>, now: i64) -> Vec<Cause> {
        let holds = |source: &Source, body: &[u8]| source.judge(&Received { body, ..*request }, now).is_ok();
        if holds(self, request.body) {
            return Vec::new();
        }
        let timeless = self.clone().with_tolerance(std::time::Duration::MAX);
        let mut causes = Vec::new();
        if matches!(self.judge(request, now), Err(Refusal::TooOld { .. } | Refusal::TooNew { .. }))
            && holds(&timeless, request.body)
        {
            causes.push(Cause::Time);
        }
        let of_body = bodies(request.body).into_iter().filter(|(_, body)| holds(&timeless, body));
        causes.extend(of_body.map(|(cause, _)| cause));
        let of_secret = timeless.with_other_secrets().into_iter().filter(|(_, source)| holds(source, request.body));
        causes.extend(of_secret.map(|(cause, _)| cause));
        causes.dedup();
        causes
    }

    fn with_other_secrets(&self) -> Vec<(Cause, Source)> {
        let with = |keys: Vec<SourceKey>| {
            let form = match &self.form {
                Form::Stripe(header, _) => Form::Stripe(header.clone(), keys),
                Form::Twilio(_) => Form::Twilio(keys),
                Form::Hmac(form, _) => Form::Hmac(form.clone(), keys),
                Form::Token { header, .. } => Form::Token { header: header.clone(), tokens: keys },
                Form::Standard(verifier) => Form::Standard(verifier.clone()),
            };
            Source { form, tolerance: self.tolerance }
        };
        let keys = match &self.form {
            // Its secrets are decoded when they are read, and what does not fit is refused there.
            Form::Standard(_) => return Vec::new(),
            Form::Stripe(_, keys) | Form::Twilio(keys) | Form::Hmac(_, keys) | Form::Token { tokens: keys, .. } => keys,
        };
        let changed = |change: fn(&SourceKey) -> Option<SourceKey>| keys.iter().filter_map(change).collect::<Vec<_>>();
        let all = [
            (Cause::SecretSpaces, changed(SourceKey::trimmed)),
            (Cause::SecretEncoded, changed(SourceKey::decoded)),
            (Cause::SecretDecoded, changed(SourceKey::encoded)),
        ];
        all.into_iter().filter(|(_, keys)| !keys.is_empty()).map(|(cause, keys)| (cause, with(keys))).collect()
    }
}

/// How the body may have been before it was changed.
fn bodies(body: &[u8]) -> Vec<(Cause, Vec<u8>)> {
    let mut all = vec![
        (Cause::EndLost, [body, b"\n"].concat()),
        (Cause::EndLost, [body, b"\r\n"].concat()),
        (Cause::EndAdded, body.trim_ascii_end().to_vec()),
        (Cause::ByteOrderMark, [MARK, body].concat()),
        (Cause::JsonSpaces, respaced(body, b",", b":")),
        (Cause::JsonSpaces, respaced(body, b", ", b": ")),
    ];
    if let Some(rest) = body.strip_prefix(MARK) {
        all.push((Cause::ByteOrderMark, rest.to_vec()));
    }
    if let Ok(text) = str::from_utf8(body) {
        let unix = text.replace("\r\n", "\n");
        all.push((Cause::LineBreaks, unix.replace('\n', "\r\n").into_bytes()));
        all.push((Cause::LineBreaks, unix.into_bytes()));
    }
    all.retain(|(_, changed)| changed != body);
    all
}

/// JSON with these between its parts, and otherwise as it is.
fn respaced(body: &[u8], comma: &[u8], colon: &[u8]) -> Vec<u8> {
    let (mut out, mut in_text, mut is_escaped) = (Vec::with_capacity(body.len()), false, false);
    for byte in body {
        match byte {
            _ if in_text => {
                out.push(*byte);
                (in_text, is_escaped) = (is_escaped || *byte != b'"', !is_escaped && *byte == b'\\');
            }
            b'"' => {
                out.push(*byte);
                in_text = true;
            }
            b',' => out.extend_from_slice(comma),
            b':' => out.extend_from_slice(colon),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            other => out.push(*other),
        }
    }
    out
}

const MARK: &[u8] = b"\xef\xbb\xbf";
