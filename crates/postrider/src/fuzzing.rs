//! Doors for the fuzzer (`fuzz/`) to rooms that are shut to everyone else. Nothing but the fuzzer and the replay of
//! its corpus may call them.

use crate::transport::{
    EndpointUrl, UrlError, UrlRules,
    url::{Destination, Host},
};
use http::{HeaderValue, Uri};
use std::net::IpAddr;

pub use crate::outbox::row::{chains, content as content_of_row, idempotency as idempotency_of_row};

/// What a request to a URL would do.
#[derive(Debug, PartialEq, Eq)]
pub struct Dialled<'a> {
    pub host: Result<IpAddr, &'a str>,
    pub port: u16,
    pub tls: bool,
    pub path: &'a Uri,
    pub absolute: &'a Uri,
    pub host_header: &'a HeaderValue,
}

pub fn dialled(url: &EndpointUrl) -> Dialled<'_> {
    let Destination { key: _, host, port, tls } = &**url.destination();
    Dialled {
        host: match host {
            Host::Ip(address) => Ok(*address),
            Host::Name(name) => Err(name),
        },
        port: *port,
        tls: tls.is_some(),
        path: url.path(),
        absolute: url.absolute(),
        host_header: url.host_header(),
    }
}

/// Where a `Location` in a URL's answer leads.
pub fn redirected(url: &EndpointUrl, location: &str, rules: &UrlRules<'_>) -> Result<EndpointUrl, UrlError> {
    url.join(location, rules)
}
