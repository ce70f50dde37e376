//! The three headers, under either of the two names they go by.
//!
//! The `svix-` names came first and the standard took them over as `webhook-`. A sender may use one set
//! or send both, so a receiver looks for either.

use crate::VerifyError;

pub const WEBHOOK_HEADERS: HeaderNames =
    HeaderNames { id: "webhook-id", timestamp: "webhook-timestamp", signature: "webhook-signature" };

pub const SVIX_HEADERS: HeaderNames =
    HeaderNames { id: "svix-id", timestamp: "svix-timestamp", signature: "svix-signature" };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderNames {
    pub id: &'static str,
    pub timestamp: &'static str,
    pub signature: &'static str,
}

/// What a request claims about itself, as its headers have it. [`crate::Verifier`] finds out if it is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signed<'a> {
    pub id: &'a str,
    pub timestamp: &'a str,
    pub signature: &'a str,
}

impl<'a> Signed<'a> {
    /// Reads the `webhook-` headers, or else the `svix-` ones; names are asked for in lower case.
    ///
    /// The two sets are never mixed. Without a complete one, this is [`VerifyError::MissingSignature`].
    pub fn from_lookup(mut header: impl FnMut(&'static str) -> Option<&'a str>) -> Result<Self, VerifyError> {
        [WEBHOOK_HEADERS, SVIX_HEADERS]
            .into_iter()
            .find_map(|names| {
                Some(Self {
                    id: header(names.id)?,
                    timestamp: header(names.timestamp)?,
                    signature: header(names.signature)?,
                })
            })
            .ok_or(VerifyError::MissingSignature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_set_of_headers_is_found_under_either_name() {
        let webhook = [("webhook-id", "w"), ("webhook-timestamp", "1"), ("webhook-signature", "v1,w")];
        let svix = [("svix-id", "s"), ("svix-timestamp", "2"), ("svix-signature", "v1,s")];
        let from_webhook = Ok(Signed { id: "w", timestamp: "1", signature: "v1,w" });
        let from_svix = Ok(Signed { id: "s", timestamp: "2", signature: "v1,s" });
        let missing = Err(VerifyError::MissingSignature);

        for (case, sent, expected) in [
            ("webhook", webhook.to_vec(), from_webhook),
            ("svix", svix.to_vec(), from_svix),
            ("both", [svix, webhook].concat(), from_webhook),
            ("half of webhook, all of svix", [&webhook[..2], &svix].concat(), from_svix),
            ("half of each", [&webhook[..2], &svix[2..]].concat(), missing),
            ("none", vec![], missing),
        ] {
            let found = Signed::from_lookup(|name| sent.iter().find(|(n, _)| *n == name).map(|(_, v)| *v));
            assert_eq!(found, expected, "{case}");
        }
    }
}
