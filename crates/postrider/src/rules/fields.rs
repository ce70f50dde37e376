//! The parts of the rules that concern an endpoint as a whole.

use crate::config::Span;
use http::HeaderName;
use postrider_engine::policy::{
    Ordering, SignatureForm, SignatureStyle, WhileOpen,
    overrides::{Subject, Treatment},
    rules::{BreakerLayer, Switch},
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, Visitor},
};
use std::{collections::BTreeMap, fmt, marker::PhantomData};
use utoipa::ToSchema;

/// Something that can be turned off: `false`, `true`, or what it is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Toggle<T> {
    Off,
    On(T),
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Toggle<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Either<T> {
            type Value = Toggle<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`false`, `true` or an object")
            }

            fn visit_bool<E>(self, on: bool) -> Result<Toggle<T>, E> {
                Ok(if on { Toggle::On(T::default()) } else { Toggle::Off })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Toggle<T>, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Toggle::On)
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

impl<T: Serialize> Serialize for Toggle<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::On(value) => value.serialize(serializer),
        }
    }
}

/// What outcomes mean, by status, hundreds or kind of fault.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusOverrides(pub BTreeMap<Subject, Treatment>);

impl<'de> Deserialize<'de> for StatusOverrides {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = StatusOverrides;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of outcomes and what they mean")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<StatusOverrides, A::Error> {
                let mut overrides = BTreeMap::new();
                while let Some(name) = pairs.next_key::<String>()? {
                    let subject = Subject::parse(&name).ok_or_else(|| {
                        de::Error::custom(format_args!(
                            "`{name}` is no outcome; write a status (`404`), a class (`4xx`), `network`, `dns`, \
                             `connection`, `certificate`, `handshake`, `timeout`, `protocol`, `forbidden-address` \
                             or `ambiguous`"
                        ))
                    })?;
                    let text = pairs.next_value::<String>()?;
                    let treatment = Treatment::parse(&text).ok_or_else(|| {
                        de::Error::custom(format_args!("`{name}` must be `success`, `retry` or `permanent`"))
                    })?;
                    if !subject.may_be(treatment) {
                        return Err(de::Error::custom(format_args!("`{name}` cannot be a success: no answer came")));
                    }
                    if overrides.insert(subject, treatment).is_some() {
                        return Err(de::Error::custom(format_args!("`{name}` is given twice")));
                    }
                }
                Ok(StatusOverrides(overrides))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

impl Serialize for StatusOverrides {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(subject, treatment)| (subject.to_string(), treatment.to_string())))
    }
}

/// How long the phases of a request may take; each up to 60 s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with connect, firstByte and total")]
pub struct TimeoutsIn {
    /// DNS, TCP and TLS together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "5s")]
    pub connect: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "15s")]
    pub first_byte: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "15s")]
    pub total: Option<Span>,
}

/// Leaves an endpoint alone for a while after failures in a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CircuitBreaker {
    /// Failures in a row that open it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
    /// How long it stays open at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub cool_down: Option<Span>,
    /// It doubles each time the probe fails, up to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "15m")]
    pub cool_down_max: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub while_open: Option<WhileOpenIn>,
}

/// What becomes of messages while the breaker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WhileOpenIn {
    Hold,
    DeadLetter,
}

impl CircuitBreaker {
    pub fn layer(toggle: &Toggle<Self>) -> BreakerLayer {
        match toggle {
            Toggle::Off => BreakerLayer::Off,
            Toggle::On(breaker) => BreakerLayer::On {
                failures: breaker.failures,
                cool_down: breaker.cool_down.map(|span| span.0),
                cool_down_max: breaker.cool_down_max.map(|span| span.0),
                while_open: breaker.while_open.map(|what| match what {
                    WhileOpenIn::Hold => WhileOpen::Hold,
                    WhileOpenIn::DeadLetter => WhileOpen::DeadLetter,
                }),
            },
        }
    }
}

/// When an endpoint is disabled by itself. Each can be `false`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AutoDisable {
    /// After failing for so long without one success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FailingForForm>, example = "5d")]
    pub failing_for: Option<OrFalse<Span>>,
    /// After so many messages in a row were refused for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PermanentStreakForm>, example = 100)]
    pub permanent_streak: Option<OrFalse<u32>>,
}

/// What is written in the place of how long.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it only describes what `OrFalse` reads")]
pub enum FailingForForm {
    After(String),
    /// `false`: however long.
    Switch(bool),
}

/// What is written in the place of how many.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it only describes what `OrFalse` reads")]
pub enum PermanentStreakForm {
    After(u32),
    /// `false`: however many.
    Switch(bool),
}

impl Toggle<AutoDisable> {
    pub fn layer(&self) -> (Option<Switch<std::time::Duration>>, Option<Switch<u32>>) {
        match self {
            Self::Off => (Some(Switch::Off), Some(Switch::Off)),
            Self::On(rule) => (
                rule.failing_for.map(|span| span.switch(|span| span.0)),
                rule.permanent_streak.map(|streak| streak.switch(|streak| streak)),
            ),
        }
    }
}

/// A value, or `false` for none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OrFalse<T> {
    False,
    Value(T),
}

impl<T> OrFalse<T> {
    fn switch<U>(self, value: impl FnOnce(T) -> U) -> Switch<U> {
        match self {
            Self::False => Switch::Off,
            Self::Value(given) => Switch::On(value(given)),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrFalse<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OrFalse<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or `false`")
            }

            fn visit_bool<E: de::Error>(self, on: bool) -> Result<OrFalse<T>, E> {
                if on { Err(E::invalid_value(de::Unexpected::Bool(on), &self)) } else { Ok(OrFalse::False) }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OrFalse<T>, E> {
                T::deserialize(de::value::StrDeserializer::new(text)).map(OrFalse::Value)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<OrFalse<T>, E> {
                T::deserialize(de::value::U64Deserializer::new(number)).map(OrFalse::Value)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<OrFalse<T>, E> {
                T::deserialize(de::value::I64Deserializer::new(number)).map(OrFalse::Value)
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

impl<T: Serialize> Serialize for OrFalse<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::False => serializer.serialize_bool(false),
            Self::Value(value) => value.serialize(serializer),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MaxInFlight(pub u16);

/// In which order an endpoint gets its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OrderingIn {
    /// Any; ordering keys are not looked at.
    None,
    /// Messages of the same ordering key one after the other, all others side by side.
    Key,
    /// One after the other, all of them.
    Fifo,
}

impl OrderingIn {
    pub fn engine(self) -> Ordering {
        match self {
            Self::None => Ordering::None,
            Self::Key => Ordering::Keyed,
            Self::Fifo => Ordering::Fifo,
        }
    }
}

/// How requests are signed besides the headers of Standard Webhooks, which are always there: in one form, or in several at
/// once while receivers move from one to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Signatures {
    One(Signature),
    Several(Vec<Signature>),
}

impl Signatures {
    pub fn forms(self) -> Vec<SignatureForm> {
        let several = match self {
            Self::One(one) => vec![one],
            Self::Several(several) => several,
        };
        several.into_iter().filter_map(Signature::form).collect()
    }
}

impl<'de> Deserialize<'de> for Signatures {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;

        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Signatures;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a form of signature, or a list of them")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Signatures, A::Error> {
                Signature::deserialize(de::value::MapAccessDeserializer::new(map)).map(Signatures::One)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Signatures, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(Signatures::Several)
            }
        }

        deserializer.deserialize_any(OneOrSeveral)
    }
}

/// One form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "style", rename_all = "lowercase", deny_unknown_fields)]
pub enum Signature {
    // With braces, because only then are members refused that it does not have.
    Standard {},
    /// `t=<unix>,v1=<hex>` in a header of this name.
    Stripe {
        #[schema(value_type = String, example = "x-acme-signature")]
        header: SignatureHeader,
        /// A header that carries the message's id.
        #[serde(default, rename = "idHeader", skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        id_header: Option<SignatureHeader>,
    },
    /// `scheme=v1,ts=<unix>,sig=<hex>` in a header of this name.
    Scheme {
        #[schema(value_type = String, example = "x-signature")]
        header: SignatureHeader,
        #[serde(default, rename = "idHeader", skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        id_header: Option<SignatureHeader>,
    },
    /// `sha256=<hex>` over the body alone, in a header of this name.
    Github {
        #[schema(value_type = String, example = "x-hub-signature-256")]
        header: SignatureHeader,
        #[serde(default, rename = "idHeader", skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        id_header: Option<SignatureHeader>,
    },
}

impl Signature {
    /// `None`: nothing besides what is always there.
    fn form(self) -> Option<SignatureForm> {
        let (style, header, id_header) = match self {
            Self::Standard {} => return None,
            Self::Stripe { header, id_header } => (SignatureStyle::Stripe, header, id_header),
            Self::Scheme { header, id_header } => (SignatureStyle::Scheme, header, id_header),
            Self::Github { header, id_header } => (SignatureStyle::GitHub, header, id_header),
        };
        Some(SignatureForm { style, header: header.0, id_header: id_header.map(|header| header.0) })
    }
}

/// The name of a header that a signature may be put into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SignatureHeader(String);

impl<'de> Deserialize<'de> for SignatureHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?.to_ascii_lowercase();
        if text.len() > 256 || HeaderName::from_bytes(text.as_bytes()).is_err() {
            return Err(de::Error::custom("is not the name of a header"));
        }
        if super::headers::is_forbidden(&text) || matches!(text.as_str(), "authorization" | "cookie") {
            return Err(de::Error::custom(format_args!("the header `{text}` cannot be set")));
        }
        Ok(Self(text))
    }
}
