//! What the wire did with one request. The transport reports it; the policy judges it.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A complete response head arrived in time.
    Answered(Answer),
    /// No usable answer came.
    Failed(Fault),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Every `Retry-After` value as it came; a response may carry several.
    pub retry_after: Vec<Vec<u8>>,
    /// The `Location` of a redirect, for the reason that is shown to a person.
    pub location: Option<String>,
    /// What the receiver asks of us besides.
    pub control: Option<Control>,
    /// A redirect was not followed although redirects are: too many of them, or to a place it must not lead to.
    pub redirect_refused: bool,
}

/// The response header `webhook-delivery`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// `disable`: send nothing more to this endpoint.
    Disable,
    /// `abort-message`: do not try this delivery again.
    AbortMessage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The name could not be resolved.
    Dns,
    /// The address, or one of the name's addresses, is one we never call. Says nothing more, so that a
    /// blocked address tells a stranger nothing about our network.
    Forbidden,
    Refused,
    Unreachable,
    /// The connection broke before a response head was complete.
    Reset,
    Tls(TlsFault),
    Timeout(TimeoutPhase),
    /// What came back is not HTTP, or breaks its limits.
    Protocol(&'static str),
    /// Our own machine is out of something (file handles, ports). Not the receiver's doing.
    LocalResource,
    /// What the receiver wants to see of us could not be had from whoever hands it out, so that it was not called.
    NoToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFault {
    UnknownIssuer,
    WrongHost,
    Expired,
    NotYetValid,
    /// Anything else in the handshake: versions, alerts, plain HTTP on a TLS port.
    Handshake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutPhase {
    Connect,
    FirstByte,
    Total,
}

/// How long each phase of a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// DNS, TCP and TLS together.
    pub connect: Duration,
    /// From the start of the attempt to the response head.
    pub first_byte: Duration,
    /// The whole attempt, body included.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), first_byte: Duration::from_secs(15), total: Duration::from_secs(15) }
    }
}
