//! What the configuration of each type consists of, for whoever asks a person for it.

/// One value of a configuration.
pub struct Field {
    /// As the API has it.
    pub name: &'static str,
    /// What people call it.
    pub label: &'static str,
    pub kind: Kind,
    pub need: Need,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Never shown again.
    Secret,
    Text {
        example: &'static str,
    },
    Number {
        example: &'static str,
    },
    /// The first one is meant where none is said.
    Choice(&'static [&'static str]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Required,
    Optional,
    /// Without it, whoever knows the URL is believed.
    Advised,
}

const fn field(name: &'static str, label: &'static str, kind: Kind, need: Need) -> Field {
    Field { name, label, kind, need }
}

const fn text(example: &'static str) -> Kind {
    Kind::Text { example }
}

use Need::{Advised, Optional, Required};

pub const NONE: &[Field] = &[];
pub const SECRET: &[Field] = &[field("secret", SIGNED_WITH, Kind::Secret, Required)];
pub const SECRET_OR_NONE: &[Field] = &[field("secret", SIGNED_WITH, Kind::Secret, Advised)];
pub const META: &[Field] = &[
    field("secret", "App secret", Kind::Secret, Required),
    field("verifyToken", "Verify token", Kind::Secret, Required),
];
pub const TAILSCALE: &[Field] = &[
    field("secret", SIGNED_WITH, Kind::Secret, Required),
    field("timestampGraceSeconds", "Seconds that a request may be old", Kind::Number { example: "300" }, Optional),
];
pub const ADOBE_SIGN: &[Field] = &[field("clientId", "Client id", Kind::Secret, Required)];
pub const TWILIO: &[Field] = &[field("authToken", "Auth token", Kind::Secret, Required)];
pub const TOKEN: &[Field] = &[
    field("header", "Header that the token comes in", text("x-gitlab-token"), Required),
    field("token", "Token", Kind::Secret, Required),
];
pub const HMAC: &[Field] = &[
    field("secret", SIGNED_WITH, Kind::Secret, Required),
    field("header", "Header with the signature", text("x-signature"), Required),
    field("prefix", "What stands before it there", text("sha256="), Optional),
    field("encoding", "Written in", Kind::Choice(&["hex", "base64"]), Optional),
    field("hash", "Hash", Kind::Choice(&["sha256", "sha512", "sha1"]), Optional),
    field("signed", "What is signed; empty: {body}", text("{timestamp}.{body}"), Optional),
    field("timestampHeader", "Header with the time of signing", text("x-timestamp"), Optional),
    field("timestampUnit", "That time is in", Kind::Choice(&["seconds", "milliseconds"]), Optional),
    field("toleranceSeconds", "Seconds that it may be off", Kind::Number { example: "300" }, Optional),
];

const SIGNED_WITH: &str = "Secret that the service signs with";

#[cfg(test)]
mod tests {
    use super::{super::presets::PRESETS, *};
    use serde_json::{Map, Value, json};

    /// A value that will do.
    fn good(field: &Field) -> Value {
        match field.kind {
            // A secret of Standard Webhooks does for all.
            Kind::Secret => json!("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"),
            Kind::Text { example } => json!(example),
            Kind::Number { example } => json!(example.parse::<u32>().unwrap()),
            Kind::Choice(several) => json!(several[0]),
        }
    }

    fn config(fields: &[&Field]) -> Value {
        fields.iter().map(|field| (field.name.to_owned(), good(field))).collect::<Map<_, _>>().into()
    }

    #[test]
    fn the_fields_of_a_type_are_those_that_it_takes() {
        for preset in PRESETS {
            let all: Vec<&Field> = preset.fields.iter().collect();
            let prepared = preset.prepare(Some(&config(&all)));
            assert!(prepared.is_ok(), "{}: {:?}", preset.name, prepared.err());
            for left_out in &all {
                let rest: Vec<&Field> = all.iter().filter(|field| field.name != left_out.name).copied().collect();
                let flaw = preset.prepare(Some(&config(&rest))).err();
                match left_out.need {
                    Required => {
                        let flaw = flaw.unwrap_or_else(|| panic!("{} without {}", preset.name, left_out.name));
                        assert_eq!((flaw.field, flaw.part.as_deref()), ("config", Some(left_out.name)));
                    }
                    // A time and what signs it belong together.
                    Optional if ["timestampHeader", "signed"].contains(&left_out.name) => assert!(flaw.is_some()),
                    Optional | Advised => assert_eq!(flaw, None, "{} {}", preset.name, left_out.name),
                }
            }
            let mut more = config(&all);
            more["colour"] = json!("red");
            assert!(preset.prepare(Some(&more)).is_err(), "{}", preset.name);
        }
    }

    #[test]
    fn whatever_is_no_secret_is_shown() {
        for preset in PRESETS.iter().filter(|preset| !preset.fields.is_empty()) {
            let all = config(&preset.fields.iter().collect::<Vec<_>>());
            let shown = preset.prepare(Some(&all)).unwrap().shown.unwrap();
            for field in preset.fields {
                let expected = if field.kind == Kind::Secret { Value::Null } else { good(field) };
                assert_eq!(shown[field.name], expected, "{} {}", preset.name, field.name);
            }
        }
    }

    #[test]
    fn every_choice_is_taken() {
        let choices = HMAC.iter().filter_map(|field| match field.kind {
            Kind::Choice(several) => Some((field.name, several)),
            _ => None,
        });
        for (name, several) in choices {
            for choice in several {
                let mut all = config(&HMAC.iter().collect::<Vec<_>>());
                all[name] = json!(choice);
                assert!(super::super::presets::find("hmac").unwrap().prepare(Some(&all)).is_ok(), "{name} {choice}");
            }
        }
    }
}
