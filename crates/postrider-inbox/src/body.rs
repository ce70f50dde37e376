//! Reads a body up to what the door lets in.

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::{Fault, Outcome};

/// The bytes as they came.
pub(crate) async fn collect<B>(body: B, max: usize) -> Result<Bytes, Outcome>
where
    B: http_body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, max).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Outcome::TooLarge { max }),
        Err(_) => Err(Outcome::Refused(Fault::BrokenBody)),
    }
}
