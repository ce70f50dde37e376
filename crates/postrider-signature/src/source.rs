//! Verifies requests of other services, each in the form that it signs in.
//!
//! Where a signature stands, how it is written and what it is of is data here, so that a service which nobody has thought of
//! can be described in a setting. A refusal says what to do about it: whoever sets a receiver up for the first time sees
//! nothing but refusals, and most of them have a handful of causes.

mod explain;
mod form;
mod key;
mod refusal;

pub use explain::Cause;
pub use form::{Encoding, FormError, Hash, HmacForm, Part, SignedText, TimeUnit, Timestamp};
pub use key::SourceKey;
pub use refusal::Refusal;

use std::{collections::BTreeSet, time::Duration};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{Signed, Verifier, VerifyError, VerifyingSecret};

/// A request as it arrived.
#[derive(Clone, Copy)]
pub struct Received<'h, 'b> {
    header: &'h dyn Fn(&str) -> Option<&'h str>,
    body: &'b [u8],
    url: Option<&'h str>,
}

impl<'h, 'b> Received<'h, 'b> {
    /// `header` finds a header's value by its name in lower case; `body` is the bytes as they came, before anything read
    /// them.
    pub fn new(header: &'h dyn Fn(&str) -> Option<&'h str>, body: &'b [u8]) -> Self {
        Self { header, body, url: None }
    }

    /// Where it was sent, as the sender knows it: scheme, host, path and query. Some sign that, too.
    pub fn at(self, url: &'h str) -> Self {
        Self { url: Some(url), ..self }
    }

    fn url(&self) -> Result<&'h str, Refusal> {
        self.url.ok_or(Refusal::UnknownUrl)
    }

    fn header(&self, name: &str) -> Result<&'h str, Refusal> {
        (self.header)(name).ok_or_else(|| Refusal::MissingHeader { name: name.to_owned() })
    }

    /// What was announced is compared with what came: a body that was cut short matches nothing, and nothing says why.
    fn check_length(&self) -> Result<(), Refusal> {
        let announced = (self.header)("content-length").and_then(|text| text.trim().parse::<u64>().ok());
        match announced.filter(|announced| *announced != self.body.len() as u64) {
            Some(announced) => Err(Refusal::BodyChanged { announced, received: self.body.len() as u64 }),
            None => Ok(()),
        }
    }
}

/// Who sends, and how its requests are known.
///
/// ```
/// use postrider_signature::{Received, Refusal, Source, SourceKey};
///
/// let github = Source::github([SourceKey::text("It's a Secret to Everybody")]);
/// let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
/// let header = |name: &str| (name == "x-hub-signature-256").then_some(signature);
///
/// assert!(github.verify(&Received::new(&header, b"Hello, World!"), 1_700_000_000).is_ok());
/// let changed = github.verify(&Received::new(&header, b"Hello, World"), 1_700_000_000);
/// assert_eq!(changed, Err(Refusal::NoMatch { secrets: 1 }));
/// ```
#[derive(Clone, Debug)]
pub struct Source {
    form: Form,
    tolerance: Duration,
}

#[derive(Clone, Debug)]
enum Form {
    Standard(Verifier),
    /// The form that Stripe made common, and the header that it stands in.
    Stripe(String, Vec<SourceKey>),
    Twilio(Vec<SourceKey>),
    Hmac(HmacForm, Vec<SourceKey>),
    Token {
        header: String,
        tokens: Vec<SourceKey>,
    },
}

/// What is known of a request whose signature holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The sender's own name for what it tells of, if a header has it.
    pub id: Option<String>,
    /// When it was signed, in unix seconds, if that was signed, too.
    pub signed_at: Option<i64>,
}

impl Source {
    /// Standard Webhooks, which Svix and this server's own deliveries follow.
    pub fn standard(secrets: impl IntoIterator<Item: Into<VerifyingSecret>>) -> Self {
        Self::new(Form::Standard(Verifier::new(secrets)))
    }

    /// `stripe-signature: t=<unix>,v1=<hex>`, of time and body.
    pub fn stripe(secrets: impl IntoIterator<Item = SourceKey>) -> Self {
        Self::like_stripe(STRIPE, secrets)
    }

    /// The same in another header: Tailscale has it in `tailscale-webhook-signature`.
    pub fn like_stripe(header: &str, secrets: impl IntoIterator<Item = SourceKey>) -> Self {
        Self::new(Form::Stripe(header.to_ascii_lowercase(), secrets.into_iter().collect()))
    }

    /// `x-twilio-signature: <base64>` by SHA-1, of the URL and of what a form says; of anything but a form, the URL has the
    /// body's hash. A request must say where it was sent: [`Received::at`].
    pub fn twilio(tokens: impl IntoIterator<Item = SourceKey>) -> Self {
        Self::new(Form::Twilio(tokens.into_iter().map(|key| key.for_hash(Hash::Sha1)).collect()))
    }

    /// `x-hub-signature-256: sha256=<hex>`, of the body.
    pub fn github(secrets: impl IntoIterator<Item = SourceKey>) -> Self {
        Self::of_form(HmacForm::github(), secrets)
    }

    /// `x-shopify-hmac-sha256: <base64>`, of the body.
    pub fn shopify(secrets: impl IntoIterator<Item = SourceKey>) -> Self {
        Self::of_form(HmacForm::shopify(), secrets)
    }

    /// `x-slack-signature: v0=<hex>`, of `v0:<unix>:<body>`.
    pub fn slack(secrets: impl IntoIterator<Item = SourceKey>) -> Self {
        Self::of_form(HmacForm::slack(), secrets)
    }

    /// A form that is described.
    pub fn hmac(form: HmacForm, secrets: impl IntoIterator<Item = SourceKey>) -> Result<Self, FormError> {
        form.check()?;
        Ok(Self::of_form(form, secrets))
    }

    fn of_form(form: HmacForm, secrets: impl IntoIterator<Item = SourceKey>) -> Self {
        let keys = secrets.into_iter().map(|key| key.for_hash(form.hash)).collect();
        Self::new(Form::Hmac(form, keys))
    }

    /// A header with a text that both ends know. Proves nothing about the body, and whoever has seen one request can send
    /// others.
    pub fn token(header: &str, tokens: impl IntoIterator<Item = SourceKey>) -> Self {
        Self::new(Form::Token { header: header.to_ascii_lowercase(), tokens: tokens.into_iter().collect() })
    }

    fn new(form: Form) -> Self {
        Self { form, tolerance: TOLERANCE_DEFAULT }
    }

    /// How far the time that was signed may lie from now, either way. Five minutes unless told.
    pub fn with_tolerance(self, tolerance: Duration) -> Self {
        let form = match self.form {
            Form::Standard(verifier) => Form::Standard(verifier.with_tolerance(tolerance)),
            other @ (Form::Stripe(..) | Form::Twilio(_) | Form::Hmac(..) | Form::Token { .. }) => other,
        };
        Self { form, tolerance }
    }

    /// `now`: unix seconds.
    pub fn verify(&self, request: &Received<'_, '_>, now: i64) -> Result<Verified, Refusal> {
        request.check_length()?;
        self.judge(request, now)
    }

    fn judge(&self, request: &Received<'_, '_>, now: i64) -> Result<Verified, Refusal> {
        match &self.form {
            Form::Standard(verifier) => self.verify_standard(verifier, request, now),
            Form::Stripe(header, keys) => self.verify_stripe(header, keys, request, now),
            Form::Twilio(keys) => self.verify_twilio(keys, request),
            Form::Hmac(form, keys) => self.verify_hmac(form, keys, request, now),
            Form::Token { header, tokens } => {
                let given = request.header(header)?;
                let is_known = tokens.iter().fold(false, |known, token| known | token.is(given.as_bytes()));
                if is_known { Ok(Verified::default()) } else { Err(Refusal::NoMatch { secrets: tokens.len() }) }
            }
        }
    }

    fn verify_standard(&self, verifier: &Verifier, request: &Received<'_, '_>, now: i64) -> Result<Verified, Refusal> {
        let signed = Signed::from_lookup(|name| (request.header)(name)).map_err(|_| Refusal::MissingHeader {
            name: "webhook-id, webhook-timestamp and webhook-signature".to_owned(),
        })?;
        verifier.verify(signed, request.body, now).map_err(|error| match error {
            VerifyError::MissingSignature => Refusal::Unreadable {
                header: "webhook-signature".to_owned(),
                expected: "`v1,` or `v1a,` and base64".to_owned(),
            },
            VerifyError::NoMatch => Refusal::NoMatch { secrets: verifier.secrets() },
            VerifyError::BadTimestamp => Refusal::unreadable_time("webhook-timestamp"),
            VerifyError::TooOld | VerifyError::TooNew => {
                let signed_at = signed.timestamp.parse().unwrap_or_default();
                Refusal::untimely(signed_at, now, self.tolerance)
            }
        })?;
        Ok(Verified { id: Some(signed.id.to_owned()), signed_at: signed.timestamp.parse().ok() })
    }

    fn verify_stripe(
        &self,
        name: &str,
        keys: &[SourceKey],
        request: &Received<'_, '_>,
        now: i64,
    ) -> Result<Verified, Refusal> {
        let header = request.header(name)?;
        let named = |wanted: &'static str| {
            let pairs = header.split(',').filter_map(|pair| pair.trim().split_once('='));
            pairs.filter(move |(name, _)| *name == wanted).map(|(_, value)| value)
        };
        let unreadable = || Refusal::Unreadable { header: name.to_owned(), expected: "`t=<unix>,v1=<hex>`".to_owned() };
        let mut times = named("t");
        // Of two times, one parser believes the first and another the last.
        let (Some(time), None) = (times.next(), times.next()) else { return Err(unreadable()) };
        if named("v1").next().is_none() {
            return Err(unreadable());
        }
        let signed_at = self.check_time(name, time, TimeUnit::Seconds, now)?;
        let parts = [time.as_bytes(), b".", request.body];
        let given = named("v1").filter_map(|text| Encoding::Hex.decode(text));
        self.match_any(keys, &parts, given.take(SIGNATURES_MAX))?;
        Ok(Verified { id: None, signed_at: Some(signed_at) })
    }

    fn verify_twilio(&self, keys: &[SourceKey], request: &Received<'_, '_>) -> Result<Verified, Refusal> {
        let (header, url) = (request.header(TWILIO)?, request.url()?);
        let unreadable = || Refusal::Unreadable { header: TWILIO.to_owned(), expected: "base64".to_owned() };
        let given = Encoding::Base64.decode(header).ok_or_else(unreadable)?;
        let query = url.split_once('?').map(|(_, query)| query).unwrap_or_default();
        let hash = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "bodySHA256");
        let mut parts = vec![url.as_bytes()];
        let fields: BTreeSet<_> = match &hash {
            Some((_, expected)) => {
                let hashed = Sha256::digest(request.body);
                if Encoding::Hex.decode(expected).is_none_or(|expected| expected[..] != hashed[..]) {
                    return Err(Refusal::NoMatch { secrets: keys.len() });
                }
                BTreeSet::new()
            }
            None => form_urlencoded::parse(request.body).collect(),
        };
        for (name, value) in &fields {
            parts.extend([name.as_bytes(), value.as_bytes()]);
        }
        self.match_any(keys, &parts, std::iter::once(given))?;
        let id = (request.header)("i-twilio-idempotency-token").map(str::to_owned);
        Ok(Verified { id, signed_at: None })
    }

    fn verify_hmac(
        &self,
        form: &HmacForm,
        keys: &[SourceKey],
        request: &Received<'_, '_>,
        now: i64,
    ) -> Result<Verified, Refusal> {
        let header = request.header(&form.header)?;
        let texts = || match form.separator {
            Some(separator) => header.split(separator).collect::<Vec<_>>(),
            None => vec![header],
        };
        let unprefixed = texts().into_iter().filter_map(|text| text.trim().strip_prefix(form.prefix.as_str()));
        let given: Vec<Vec<u8>> =
            unprefixed.filter_map(|text| form.encoding.decode(text)).take(SIGNATURES_MAX).collect();
        if given.is_empty() {
            return Err(Refusal::Unreadable { header: form.header.clone(), expected: form.expected() });
        }
        let time = match &form.timestamp {
            None => None,
            Some(Timestamp { header, unit }) => {
                let text = request.header(header)?;
                Some((text, self.check_time(header, text, *unit, now)?))
            }
        };
        let mut parts = Vec::new();
        for part in form.signed.parts() {
            parts.push(match part {
                Part::Text(text) => text.as_bytes(),
                Part::Header(name) => request.header(name)?.as_bytes(),
                Part::Timestamp => time.map_or(&[][..], |(text, _)| text.as_bytes()),
                Part::Url => request.url()?.as_bytes(),
                Part::Body => request.body,
            });
        }
        self.match_any(keys, &parts, given.into_iter())?;
        let id = form.id.as_deref().and_then(|name| (request.header)(name)).map(str::to_owned);
        Ok(Verified { id, signed_at: time.map(|(_, at)| at) })
    }

    /// The time as it was signed, and near enough.
    fn check_time(&self, header: &str, text: &str, unit: TimeUnit, now: i64) -> Result<i64, Refusal> {
        let signed_at = unit.seconds(text).ok_or_else(|| Refusal::unreadable_time(header))?;
        match Duration::from_secs(now.abs_diff(signed_at)) > self.tolerance {
            true => Err(Refusal::untimely(signed_at, now, self.tolerance)),
            false => Ok(signed_at),
        }
    }

    fn match_any(
        &self,
        keys: &[SourceKey],
        parts: &[&[u8]],
        given: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), Refusal> {
        let given: Vec<Vec<u8>> = given.collect();
        let is_signed = keys.iter().any(|key| {
            let expected = key.tag(parts);
            // Of unequal lengths this says no, and nothing else.
            given.iter().any(|given| given.ct_eq(&expected).into())
        });
        if is_signed { Ok(()) } else { Err(Refusal::NoMatch { secrets: keys.len() }) }
    }
}

impl Encoding {
    fn decode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Base64 => STANDARD.decode(text).ok(),
            Self::Hex => {
                let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
                let (pairs, rest) = text.as_bytes().as_chunks::<2>();
                let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
                bytes.collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())
            }
        }
    }
}

const STRIPE: &str = "stripe-signature";
const TWILIO: &str = "x-twilio-signature";
const TOLERANCE_DEFAULT: Duration = Duration::from_secs(5 * 60);
/// Whoever sends chooses how many there are. No sender has more active secrets.
const SIGNATURES_MAX: usize = 16;

#[cfg(test)]
mod tests;
