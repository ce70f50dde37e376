//! Signs and verifies webhooks as [Standard Webhooks](https://www.standardwebhooks.com) describes, and in
//! forms besides that others have made common: [`stripe_header`], [`scheme_header`] and [`github_header`].
//!
//! For receivers of other services' webhooks there is [`Source`]: Stripe, GitHub, Shopify, Slack, Twilio, and whatever a form can be
//! described of.
//!
//! A crate of its own, because both ends need it: the server signs each attempt, and whoever receives
//! one wants to verify it without taking on a server. So it does no IO and reads no clock; the time is
//! an argument, in unix seconds.
//!
//! ```
//! use postrider_signature::{Secret, Signed, SigningKey, Verifier, VerifyError, sign};
//!
//! let secret = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")?;
//! let (id, sent, body) = ("msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", 1649367553, br#"{"paid":true}"#);
//!
//! let keys = [SigningKey::new(&secret)];
//! let signature = sign(&keys, id, sent, body);
//!
//! let verifier = Verifier::new([secret]);
//! let headers = Signed { id, timestamp: "1649367553", signature: &signature };
//! assert_eq!(verifier.verify(headers, body, sent + 2), Ok(()));
//! assert_eq!(verifier.verify(headers, b"{}", sent + 2), Err(VerifyError::NoMatch));
//! assert_eq!(verifier.verify(headers, body, sent + 301), Err(VerifyError::TooOld));
//! # Ok::<(), postrider_signature::SecretError>(())
//! ```

mod ed25519;
mod headers;
mod pairs;
mod secret;
mod sign;
mod source;
mod verify;

pub use ed25519::{PrivateKey, PublicKey};
pub use headers::{HeaderNames, SVIX_HEADERS, Signed, WEBHOOK_HEADERS};
pub use pairs::{github_header, scheme_header, stripe_header};
pub use secret::{Secret, SecretError, SigningSecret};
pub use sign::{SharedKey, SigningKey, sign};
pub use source::{
    Cause, Encoding, FormError, Hash, HmacForm, Part, Received, Refusal, SignedText, Source, SourceKey, TimeUnit,
    Timestamp, Verified,
};
pub use verify::{Verifier, VerifyError, VerifyingSecret};
