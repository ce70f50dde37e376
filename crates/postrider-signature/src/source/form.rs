//! How a service signs, as data.

use std::fmt;

/// A signature by HMAC in a header of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HmacForm {
    /// In lower case, as are all names of headers here.
    pub header: String,
    /// Before each signature.
    pub prefix: String,
    pub encoding: Encoding,
    pub hash: Hash,
    /// Between several signatures, where a sender with two secrets writes both.
    pub separator: Option<char>,
    pub timestamp: Option<Timestamp>,
    pub signed: SignedText,
    /// The header with the sender's own name for what it tells of.
    pub id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Hex,
    Base64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// Of old; some services sign with it still.
    Sha1,
    Sha256,
    Sha512,
}

/// When it was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timestamp {
    pub header: String,
    pub unit: TimeUnit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    Seconds,
    Milliseconds,
}

impl TimeUnit {
    /// Unix seconds. `None`: it is no such number.
    pub(super) fn seconds(self, text: &str) -> Option<i64> {
        let number: i64 = text.parse().ok()?;
        match self {
            Self::Seconds => Some(number),
            Self::Milliseconds => Some(number.div_euclid(1_000)),
        }
    }
}

/// What a signature is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedText(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Timestamp,
    Header(String),
    /// Where the request was sent.
    Url,
    Body,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    #[error("what is signed must contain {{body}} once: otherwise anybody could change it")]
    Body,
    #[error("{{{0}}} is none of {{body}}, {{timestamp}}, {{url}} and {{header:<name>}}")]
    Unknown(String),
    #[error("a {{ without its }}")]
    Open,
    #[error("{{timestamp}} and the header that has it belong together: a time that is not signed proves nothing")]
    Timestamp,
}

impl SignedText {
    /// Reads `v0:{timestamp}:{body}` and the like; `{header:<name>}` stands for a header's value, `{url}` for where
    /// the request was sent.
    pub fn parse(text: &str) -> Result<Self, FormError> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let (name, behind) = after.split_once('}').ok_or(FormError::Open)?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(match (name, name.strip_prefix("header:")) {
                ("body", _) => Part::Body,
                ("timestamp", _) => Part::Timestamp,
                ("url", _) => Part::Url,
                (_, Some(header)) if !header.is_empty() => Part::Header(header.to_ascii_lowercase()),
                (other, _) => return Err(FormError::Unknown(other.to_owned())),
            });
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        match parts.iter().filter(|part| **part == Part::Body).count() {
            1 => Ok(Self(parts)),
            _ => Err(FormError::Body),
        }
    }

    pub fn parts(&self) -> &[Part] {
        &self.0
    }
}

impl fmt::Display for SignedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(text),
            Part::Timestamp => f.write_str("{timestamp}"),
            Part::Header(name) => write!(f, "{{header:{name}}}"),
            Part::Url => f.write_str("{url}"),
            Part::Body => f.write_str("{body}"),
        })
    }
}

impl HmacForm {
    /// The body in hex by SHA-256, in this header.
    pub fn new(header: &str) -> Self {
        Self {
            header: header.to_ascii_lowercase(),
            prefix: String::new(),
            encoding: Encoding::Hex,
            hash: Hash::Sha256,
            separator: None,
            timestamp: None,
            signed: SignedText(vec![Part::Body]),
            id: None,
        }
    }

    /// Whether its parts fit together.
    pub(super) fn check(&self) -> Result<(), FormError> {
        let is_signed = self.signed.parts().contains(&Part::Timestamp);
        if is_signed == self.timestamp.is_some() { Ok(()) } else { Err(FormError::Timestamp) }
    }

    pub(super) fn github() -> Self {
        let id = Some("x-github-delivery".to_owned());
        Self { prefix: "sha256=".to_owned(), id, ..Self::new("x-hub-signature-256") }
    }

    pub(super) fn shopify() -> Self {
        let id = Some("x-shopify-webhook-id".to_owned());
        Self { encoding: Encoding::Base64, id, ..Self::new("x-shopify-hmac-sha256") }
    }

    pub(super) fn slack() -> Self {
        let timestamp = Timestamp { header: "x-slack-request-timestamp".to_owned(), unit: TimeUnit::Seconds };
        Self {
            prefix: "v0=".to_owned(),
            timestamp: Some(timestamp),
            signed: SignedText::parse("v0:{timestamp}:{body}").expect("it was written by us"),
            ..Self::new("x-slack-signature")
        }
    }

    /// What its header should hold, in words.
    pub(super) fn expected(&self) -> String {
        let encoded = match self.encoding {
            Encoding::Hex => "hex",
            Encoding::Base64 => "base64",
        };
        if self.prefix.is_empty() { encoded.to_owned() } else { format!("`{}` and {encoded}", self.prefix) }
    }
}
