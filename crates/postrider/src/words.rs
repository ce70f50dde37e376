//! What things are called where people and programs read them: in the API, in logs and in traces.

use postrider_engine::{
    lanes::HeldBy,
    policy::{Class, DeathReason, Rule},
};

pub fn class_name(class: Class) -> &'static str {
    match class {
        Class::Delivered => "delivered",
        Class::Transient => "transient",
        Class::Ambiguous => "ambiguous",
        Class::Permanent => "permanent",
        Class::Gone => "gone",
    }
}

pub fn rule_name(rule: Rule) -> &'static str {
    match rule {
        Rule::Success => "success",
        Rule::AskedToWait => "asked-to-wait",
        Rule::ServerError => "server-error",
        Rule::NotFound => "not-found",
        Rule::Gone => "gone",
        Rule::Redirect => "redirect",
        Rule::ClientError => "client-error",
        Rule::NotImplemented => "not-implemented",
        Rule::ProtocolSwitch => "protocol-switch",
        Rule::Dns => "dns",
        Rule::ForbiddenAddress => "forbidden-address",
        Rule::Connection => "connection",
        Rule::Certificate => "certificate",
        Rule::Handshake => "handshake",
        Rule::Timeout => "timeout",
        Rule::NotHttp => "not-http",
        Rule::LocalResource => "local-resource",
        Rule::Override => "override",
        Rule::AbortAsked => "abort-asked",
        Rule::RedirectRefused => "redirect-refused",
        Rule::NoToken => "no-token",
    }
}

pub fn held_name(by: HeldBy) -> &'static str {
    match by {
        HeldBy::Slots => "slots",
        HeldBy::Rate => "rate",
        HeldBy::AppRate => "application-rate",
        HeldBy::Breaker => "breaker",
        HeldBy::Pause => "pause",
        HeldBy::Order => "order",
        HeldBy::Queue => "queue",
    }
}

pub fn death_name(reason: DeathReason) -> &'static str {
    match reason {
        DeathReason::Permanent => "permanent",
        DeathReason::Exhausted => "exhausted",
        DeathReason::Expired => "expired",
        DeathReason::EndpointGone => "endpoint-gone",
        DeathReason::Cancelled => "cancelled",
        DeathReason::Breaker => "breaker",
    }
}
