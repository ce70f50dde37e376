//! A `Location` leads nowhere that a customer could not have named.

use super::url_and_host::{holds, usual};
use postrider::{
    fuzzing::redirected,
    transport::{EndpointUrl, UrlRules},
};

pub fn check(data: &[u8]) {
    let Ok(location) = std::str::from_utf8(data) else { return };
    for from in ["https://example.com/hooks?a=b", "http://example.com:8080", "https://[2600::1]/a/../b;c"] {
        let from = EndpointUrl::parse(from, &usual()).expect("these may be called");
        if let Ok(to) = redirected(&from, location, &usual()) {
            holds(&to);
        }
        let strict = UrlRules { https_only: true, ..usual() };
        if let Ok(to) = redirected(&from, location, &strict) {
            assert!(to.as_str().starts_with("https://"), "{from} leads to {to}");
        }
    }
}
