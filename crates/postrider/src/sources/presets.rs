//! The services that a source can be set up for: how each signs, and where it says what an event is.
//!
//! Each is a row of a table. The types and their configurations are the contract's, and three of our own: `hmac`, `token`
//! and `twilio`. A type that is not in the table is refused by name: whoever sets up a source must not believe that it
//! verifies what it cannot.

use super::{
    challenge::Challenge,
    fields::{self, Field},
};
use postrider_signature::{
    Encoding, Hash, HmacForm, SignedText, Source as Verifier, SourceKey, TimeUnit, Timestamp, VerifyingSecret,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::time::Duration;

pub struct Preset {
    /// The contract's type.
    pub name: &'static str,
    /// Where an event's id stands, the best place first; see `Place`.
    pub ids: &'static [&'static str],
    /// It is part of what is signed.
    pub signs_id: bool,
    /// The same for its type.
    pub types: &'static [&'static str],
    /// What goes along to the endpoints, in lower case.
    pub headers: &'static [&'static str],
    /// What its configuration consists of.
    pub fields: &'static [Field],
    prepare: fn(Option<&Value>) -> Result<Prepared, Flaw>,
}

/// What a configuration comes to.
pub struct Prepared {
    /// `None`: whoever knows the URL is believed.
    pub verifier: Option<Verifier>,
    pub challenge: Challenge,
    /// What of the configuration may be shown; `None`: there is none.
    pub shown: Option<Value>,
    pub secret_header: Option<String>,
}

/// What is wrong with what someone wants, and in which field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    pub field: &'static str,
    /// Where in it.
    pub part: Option<String>,
    pub msg: String,
}

impl Flaw {
    pub fn new(field: &'static str, msg: impl Into<String>) -> Self {
        Self { field, part: None, msg: msg.into() }
    }

    fn config(msg: impl Into<String>) -> Self {
        Self::new("config", msg)
    }

    fn in_config(part: &str, msg: impl Into<String>) -> Self {
        Self { part: Some(part.to_owned()), ..Self::config(msg) }
    }
}

impl Preset {
    pub fn prepare(&self, config: Option<&Value>) -> Result<Prepared, Flaw> {
        (self.prepare)(config)
    }
}

pub fn find(kind: &str) -> Result<&'static Preset, Flaw> {
    let found = PRESETS.iter().find(|preset| preset.name == kind);
    found.ok_or_else(|| match UNSUPPORTED.contains(&kind) {
        true => Flaw::new("type", format!("`{kind}` is not supported here")),
        false => {
            let known: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            Flaw::new("type", format!("`{kind:.64}` is none of {}", known.join(", ")))
        }
    })
}

const fn preset(
    name: &'static str,
    fields: &'static [Field],
    prepare: fn(Option<&Value>) -> Result<Prepared, Flaw>,
) -> Preset {
    Preset { name, ids: &[], signs_id: false, types: &[], headers: &[], fields, prepare }
}

/// One of the many that sign as Standard Webhooks describes, or as Svix did before.
const fn standard_preset(name: &'static str) -> Preset {
    let ids = &["header:webhook-id", "header:svix-id"];
    Preset { ids, signs_id: true, types: &["body:/type"], ..preset(name, fields::SECRET, standard) }
}

pub static PRESETS: &[Preset] = &[
    preset("generic-webhook", fields::NONE, nothing),
    preset("hmac", fields::HMAC, hmac),
    preset("token", fields::TOKEN, token),
    standard_preset("svix"),
    standard_preset("beehiiv"),
    standard_preset("brex"),
    standard_preset("clerk"),
    standard_preset("guesty"),
    standard_preset("incident-io"),
    standard_preset("lithic"),
    standard_preset("nash"),
    standard_preset("open-ai"),
    standard_preset("pleo"),
    standard_preset("psi-fi"),
    standard_preset("render"),
    standard_preset("replicate"),
    standard_preset("resend"),
    standard_preset("safebase"),
    standard_preset("sardine"),
    standard_preset("stych"),
    Preset { types: &["body:/event"], ..preset("adobe-sign", fields::ADOBE_SIGN, adobe_sign) },
    Preset { ids: &["body:/id"], types: &["body:/name"], ..preset("airwallex", fields::SECRET, airwallex) },
    Preset { types: &["body:/event"], ..preset("docusign", fields::SECRET_OR_NONE, docusign) },
    Preset {
        ids: &["body:/id"],
        types: &["body:/description"],
        ..preset("easypost", fields::SECRET_OR_NONE, easypost)
    },
    Preset {
        ids: &["header:x-github-delivery"],
        types: &["header:x-github-event"],
        headers: &[
            "x-github-event",
            "x-github-delivery",
            "x-github-hook-id",
            "x-github-hook-installation-target-id",
            "x-github-hook-installation-target-type",
        ],
        ..preset("github", fields::SECRET_OR_NONE, github)
    },
    Preset {
        types: &["body:/0/subscriptionType", "body:/subscriptionType"],
        ..preset("hubspot", fields::SECRET_OR_NONE, hubspot)
    },
    Preset { types: &["body:/object"], ..preset("meta", fields::META, meta) },
    Preset { ..preset("port-io", fields::SECRET, port_io) },
    Preset { ids: &["body:/messageId"], types: &["body:/type"], ..preset("segment", fields::SECRET_OR_NONE, segment) },
    Preset {
        // One event can make several webhooks, which have its id in common: this one is of the webhook, and stays when it is
        // sent again.
        ids: &["header:x-shopify-webhook-id", "header:x-shopify-event-id"],
        types: &["header:x-shopify-topic"],
        headers: &[
            "x-shopify-topic",
            "x-shopify-shop-domain",
            "x-shopify-api-version",
            "x-shopify-webhook-id",
            "x-shopify-event-id",
            "x-shopify-triggered-at",
        ],
        ..preset("shopify", fields::SECRET, shopify)
    },
    Preset {
        ids: &["body:/event_id"],
        types: &["body:/event/type", "body:/type"],
        headers: &["x-slack-retry-num", "x-slack-retry-reason"],
        ..preset("slack", fields::SECRET, slack)
    },
    Preset { ids: &["body:/id"], types: &["body:/type"], ..preset("stripe", fields::SECRET, stripe) },
    Preset { types: &["body:/0/type"], ..preset("tailscale", fields::TAILSCALE, tailscale) },
    Preset {
        ids: &["header:i-twilio-idempotency-token"],
        headers: &["i-twilio-idempotency-token", "x-home-region"],
        ..preset("twilio", fields::TWILIO, twilio)
    },
    Preset { types: &["body:/message/type"], ..preset("vapi", fields::SECRET, vapi) },
    Preset { types: &["body:/eventType"], ..preset("veriff", fields::SECRET, veriff) },
    Preset { types: &["body:/event"], ..preset("zoom", fields::SECRET, zoom) },
];

/// The rest of the contract's.
const UNSUPPORTED: &[&str] =
    &["checkbook", "cron", "merge", "nango", "openclaw", "orum-io", "panda-doc", "rutter", "telnyx", "vgs"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Secret {
    secret: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OptionalSecret {
    secret: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Meta {
    secret: String,
    verify_token: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Tailscale {
    secret: String,
    timestamp_grace_seconds: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AdobeSign {
    client_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Twilio {
    auth_token: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    header: String,
    token: String,
}

/// How someone signs whom we do not know.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Hmac {
    secret: String,
    header: String,
    prefix: Option<String>,
    encoding: Option<EncodingName>,
    hash: Option<HashName>,
    /// `{body}` if absent.
    signed: Option<String>,
    timestamp_header: Option<String>,
    timestamp_unit: Option<UnitName>,
    tolerance_seconds: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EncodingName {
    Hex,
    Base64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HashName {
    Sha1,
    Sha256,
    Sha512,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum UnitName {
    Seconds,
    Milliseconds,
}

fn read<T: DeserializeOwned>(config: Option<&Value>) -> Result<T, Flaw> {
    let config = config.cloned().ok_or_else(|| Flaw::config("is missing"))?;
    serde_path_to_error::deserialize(config).map_err(|fault| {
        let (path, msg) = (fault.path().to_string(), fault.into_inner().to_string());
        // Serde names a field that is not there, and has no path to it.
        let missing = msg.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
        match (missing, path.as_str()) {
            (Some((name, _)), _) => Flaw::in_config(name, "is missing"),
            (None, ".") => Flaw::config(msg),
            (None, part) => Flaw::in_config(part, msg),
        }
    })
}

/// A secret of its text, which nobody leaves empty on purpose.
fn key(field: &str, text: &str) -> Result<SourceKey, Flaw> {
    match text.len() {
        1..=SECRET_MAX => Ok(SourceKey::text(text)),
        _ => Err(Flaw::in_config(field, format!("must be 1 to {SECRET_MAX} bytes"))),
    }
}

fn secret(config: Option<&Value>) -> Result<SourceKey, Flaw> {
    key("secret", &read::<Secret>(config)?.secret)
}

fn header_name(field: &str, text: &str) -> Result<String, Flaw> {
    match http::HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) => Ok(name.as_str().to_owned()),
        Err(_) => Err(Flaw::in_config(field, "must be the name of a header")),
    }
}

/// Nothing of it is shown.
fn hidden(verifier: Verifier) -> Prepared {
    Prepared { verifier: Some(verifier), challenge: Challenge::None, shown: Some(json!({})), secret_header: None }
}

/// For those whose secret may be left out: whoever knows the URL is believed then.
fn unless_absent(
    config: Option<&Value>,
    with: impl FnOnce(SourceKey) -> Result<Prepared, Flaw>,
) -> Result<Prepared, Flaw> {
    let OptionalSecret { secret } = if config.is_some() { read(config)? } else { OptionalSecret::default() };
    match secret {
        Some(secret) => with(key("secret", &secret)?),
        None => {
            let shown = Some(json!({}));
            Ok(Prepared { verifier: None, challenge: Challenge::None, shown, secret_header: None })
        }
    }
}

fn formed(form: HmacForm, key: SourceKey) -> Result<Prepared, Flaw> {
    Verifier::hmac(form, [key]).map(hidden).map_err(|error| Flaw::config(error.to_string()))
}

fn nothing(config: Option<&Value>) -> Result<Prepared, Flaw> {
    match config {
        Some(config) if *config != json!({}) => Err(Flaw::config("this type has none")),
        Some(_) | None => Ok(Prepared { verifier: None, challenge: Challenge::None, shown: None, secret_header: None }),
    }
}

fn standard(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let Secret { secret } = read(config)?;
    let secret = VerifyingSecret::parse(&secret).map_err(|error| Flaw::in_config("secret", error.to_string()))?;
    Ok(hidden(Verifier::standard([secret])))
}

fn stripe(config: Option<&Value>) -> Result<Prepared, Flaw> {
    Ok(hidden(Verifier::stripe([secret(config)?])))
}

fn shopify(config: Option<&Value>) -> Result<Prepared, Flaw> {
    Ok(hidden(Verifier::shopify([secret(config)?])))
}

fn slack(config: Option<&Value>) -> Result<Prepared, Flaw> {
    Ok(Prepared { challenge: Challenge::Slack, ..hidden(Verifier::slack([secret(config)?])) })
}

fn github(config: Option<&Value>) -> Result<Prepared, Flaw> {
    unless_absent(config, |key| Ok(hidden(Verifier::github([key]))))
}

fn twilio(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let Twilio { auth_token } = read(config)?;
    Ok(hidden(Verifier::twilio([key("authToken", &auth_token)?])))
}

/// `x-zm-signature: v0=<hex>`, of `v0:<unix>:<body>`.
fn zoom(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let Secret { secret } = read(config)?;
    let form = HmacForm {
        prefix: "v0=".to_owned(),
        timestamp: Some(in_header("x-zm-request-timestamp", TimeUnit::Seconds)),
        signed: text("v0:{timestamp}:{body}"),
        ..HmacForm::new("x-zm-signature")
    };
    let prepared = formed(form, key("secret", &secret)?)?;
    Ok(Prepared { challenge: Challenge::Zoom { secret }, ..prepared })
}

/// GitHub's form, and a question before anything is sent.
fn meta(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let Meta { secret, verify_token } = read(config)?;
    key("verifyToken", &verify_token)?;
    let prepared = hidden(Verifier::github([key("secret", &secret)?]));
    Ok(Prepared { challenge: Challenge::Meta { verify_token }, ..prepared })
}

/// `x-signature: <hex>`, of `<unix milliseconds><body>`.
fn airwallex(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let form = HmacForm {
        timestamp: Some(in_header("x-timestamp", TimeUnit::Milliseconds)),
        signed: text("{timestamp}{body}"),
        ..HmacForm::new("x-signature")
    };
    formed(form, secret(config)?)
}

/// `x-docusign-signature-1: <base64>`, of the body.
fn docusign(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let form = HmacForm { encoding: Encoding::Base64, ..HmacForm::new("x-docusign-signature-1") };
    unless_absent(config, |key| formed(form, key))
}

/// `x-hmac-signature: hmac-sha256-hex=<hex>`, of the body.
fn easypost(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let form = HmacForm { prefix: "hmac-sha256-hex=".to_owned(), ..HmacForm::new("x-hmac-signature") };
    unless_absent(config, |key| formed(form, key))
}

/// The third version: `x-hubspot-signature-v3: <base64>`, of method, URL, body and time.
fn hubspot(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let form = HmacForm {
        encoding: Encoding::Base64,
        timestamp: Some(in_header("x-hubspot-request-timestamp", TimeUnit::Milliseconds)),
        signed: text("POST{url}{body}{timestamp}"),
        ..HmacForm::new("x-hubspot-signature-v3")
    };
    unless_absent(config, |key| formed(form, key))
}

/// `x-port-signature: v1,<base64>`, of `<unix>.<body>`.
fn port_io(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let form = HmacForm {
        prefix: "v1,".to_owned(),
        encoding: Encoding::Base64,
        timestamp: Some(in_header("x-port-timestamp", TimeUnit::Seconds)),
        signed: text("{timestamp}.{body}"),
        ..HmacForm::new("x-port-signature")
    };
    formed(form, secret(config)?)
}

/// `x-signature: <hex>` by SHA-1, of the body.
fn segment(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let form = HmacForm { hash: Hash::Sha1, ..HmacForm::new("x-signature") };
    unless_absent(config, |key| formed(form, key))
}

/// Stripe's form in a header of its own.
fn tailscale(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let Tailscale { secret, timestamp_grace_seconds } = read(config)?;
    let verifier = Verifier::like_stripe("tailscale-webhook-signature", [key("secret", &secret)?]);
    Ok(match timestamp_grace_seconds {
        Some(seconds) => {
            let shown = Some(json!({"timestampGraceSeconds": seconds}));
            Prepared { shown, ..hidden(verifier.with_tolerance(Duration::from_secs(seconds.into()))) }
        }
        None => hidden(verifier),
    })
}

/// `x-hmac-signature: <hex>`, of the body.
fn veriff(config: Option<&Value>) -> Result<Prepared, Flaw> {
    formed(HmacForm::new("x-hmac-signature"), secret(config)?)
}

/// `x-vapi-secret` is the secret itself.
fn vapi(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let verifier = Verifier::token(VAPI, [secret(config)?]);
    Ok(Prepared { secret_header: Some(VAPI.to_owned()), ..hidden(verifier) })
}

/// Says whose the webhook is, and wants to hear it again.
fn adobe_sign(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let AdobeSign { client_id } = read(config)?;
    let verifier = Verifier::token(super::challenge::ADOBE_SIGN, [key("clientId", &client_id)?]);
    match http::HeaderValue::try_from(&client_id) {
        Ok(client_id) => {
            let secret_header = Some(super::challenge::ADOBE_SIGN.to_owned());
            Ok(Prepared { challenge: Challenge::AdobeSign { client_id }, secret_header, ..hidden(verifier) })
        }
        Err(_) => Err(Flaw::in_config("clientId", "must fit in a header")),
    }
}

fn token(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let Token { header, token } = read(config)?;
    let (header, token) = (header_name("header", &header)?, key("token", &token)?);
    let shown = Some(json!({"header": header}));
    Ok(Prepared { shown, secret_header: Some(header.clone()), ..hidden(Verifier::token(&header, [token])) })
}

fn hmac(config: Option<&Value>) -> Result<Prepared, Flaw> {
    let wanted: Hmac = read(config)?;
    let signed = wanted.signed.as_deref().unwrap_or("{body}");
    let timestamp = match wanted.timestamp_header.as_deref() {
        Some(header) => Some(Timestamp {
            header: header_name("timestampHeader", header)?,
            unit: match wanted.timestamp_unit.unwrap_or(UnitName::Seconds) {
                UnitName::Seconds => TimeUnit::Seconds,
                UnitName::Milliseconds => TimeUnit::Milliseconds,
            },
        }),
        None if wanted.timestamp_unit.is_some() || wanted.tolerance_seconds.is_some() => {
            return Err(Flaw::in_config("timestampHeader", "is needed for `timestampUnit` and `toleranceSeconds`"));
        }
        None => None,
    };
    let form = HmacForm {
        prefix: wanted.prefix.clone().unwrap_or_default(),
        encoding: match wanted.encoding.unwrap_or(EncodingName::Hex) {
            EncodingName::Hex => Encoding::Hex,
            EncodingName::Base64 => Encoding::Base64,
        },
        hash: match wanted.hash.unwrap_or(HashName::Sha256) {
            HashName::Sha1 => Hash::Sha1,
            HashName::Sha256 => Hash::Sha256,
            HashName::Sha512 => Hash::Sha512,
        },
        timestamp,
        signed: SignedText::parse(signed).map_err(|error| Flaw::in_config("signed", error.to_string()))?,
        ..HmacForm::new(&header_name("header", &wanted.header)?)
    };
    let verifier = Verifier::hmac(form, [key("secret", &wanted.secret)?]);
    let verifier = verifier.map_err(|error| Flaw::in_config("signed", error.to_string()))?;
    let tolerance = wanted.tolerance_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let verifier = match tolerance {
        Some(tolerance) => verifier.with_tolerance(tolerance),
        None => verifier,
    };
    let mut shown = config.cloned().unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        fields.remove("secret");
    }
    Ok(Prepared { shown: Some(shown), ..hidden(verifier) })
}

fn in_header(header: &str, unit: TimeUnit) -> Timestamp {
    Timestamp { header: header.to_owned(), unit }
}

fn text(signed: &str) -> SignedText {
    SignedText::parse(signed).expect("it was written by us")
}

const VAPI: &str = "x-vapi-secret";
const SECRET_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::super::reading::Place;
    use super::*;

    #[test]
    fn every_place_in_the_table_can_be_read() {
        for preset in PRESETS {
            for text in preset.ids.iter().chain(preset.types) {
                assert!(Place::parse(text).is_some(), "{}: {text}", preset.name);
            }
            assert!(preset.headers.iter().all(|name| *name == name.to_ascii_lowercase()), "{}", preset.name);
        }
    }

    #[test]
    fn what_cannot_be_verified_is_refused_by_name() {
        for kind in UNSUPPORTED {
            let refused = find(kind).err().expect("refused");
            assert_eq!((refused.field, refused.msg), ("type", format!("`{kind}` is not supported here")));
        }
        assert!(find("fax").err().expect("refused").msg.contains("generic-webhook, hmac"));
    }

    #[test]
    fn a_configuration_is_taken_whole_or_refused() {
        let whsec = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
        for (kind, config, accepted) in [
            ("generic-webhook", None, true),
            ("generic-webhook", Some(json!({})), true),
            ("generic-webhook", Some(json!({"secret": "s"})), false),
            ("github", None, true),
            ("github", Some(json!({"secret": null})), true),
            ("github", Some(json!({"secret": "s"})), true),
            ("github", Some(json!({"secret": ""})), false),
            ("github", Some(json!({"secrets": "s"})), false),
            ("stripe", Some(json!({"secret": "whsec_x"})), true),
            ("stripe", Some(json!({})), false),
            ("stripe", None, false),
            ("svix", Some(json!({"secret": whsec})), true),
            ("svix", Some(json!({"secret": "too short"})), false),
            ("meta", Some(json!({"secret": "s", "verifyToken": "t"})), true),
            ("meta", Some(json!({"secret": "s"})), false),
            ("tailscale", Some(json!({"secret": "s", "timestampGraceSeconds": 5})), true),
            ("twilio", Some(json!({"authToken": "s"})), true),
            ("token", Some(json!({"header": "X-Mine", "token": "t"})), true),
            ("token", Some(json!({"header": "a b", "token": "t"})), false),
            ("hmac", Some(json!({"secret": "s", "header": "x-sig"})), true),
            ("hmac", Some(json!({"secret": "s", "header": "x-sig", "hash": "md5"})), false),
            ("hmac", Some(json!({"secret": "s", "header": "x-sig", "signed": "{timestamp}.{body}"})), false),
            ("hmac", Some(json!({"secret": "s", "header": "x-sig", "toleranceSeconds": 5})), false),
            (
                "hmac",
                Some(json!({"secret": "s", "header": "x-sig", "prefix": "v1=", "encoding": "base64", "hash": "sha512",
                    "signed": "{timestamp}.{body}", "timestampHeader": "x-time", "timestampUnit": "milliseconds",
                    "toleranceSeconds": 60})),
                true,
            ),
        ] {
            let read = find(kind).unwrap().prepare(config.as_ref());
            assert_eq!(read.is_ok(), accepted, "{kind} {config:?}: {:?}", read.err());
        }
    }

    #[test]
    fn no_secret_is_shown() {
        for (kind, config) in [
            ("hmac", json!({"secret": "canary", "header": "x-sig"})),
            ("token", json!({"header": "x-mine", "token": "canary"})),
            ("stripe", json!({"secret": "canary"})),
            ("meta", json!({"secret": "canary", "verifyToken": "canary"})),
            ("twilio", json!({"authToken": "canary"})),
            ("adobe-sign", json!({"clientId": "canary"})),
        ] {
            let shown = find(kind).unwrap().prepare(Some(&config)).unwrap().shown.expect("an object");
            assert!(!shown.to_string().contains("canary"), "{kind}: {shown}");
        }
    }
}
